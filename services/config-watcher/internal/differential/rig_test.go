package differential

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/aggregate"
	"fairlead.dev/services/config-watcher/internal/fanout"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/pipeline"
	"fairlead.dev/services/config-watcher/internal/resource"
	"fairlead.dev/services/config-watcher/internal/revision"
	"fairlead.dev/services/config-watcher/internal/source"
	"fairlead.dev/services/config-watcher/internal/source/file"
	"fairlead.dev/services/config-watcher/internal/source/kubernetes/apiservertest"
	"fairlead.dev/services/config-watcher/internal/source/memory"
	"fairlead.dev/services/config-watcher/internal/validate"
)

func sorted(list []string) []string { return slices.Sorted(slices.Values(list)) }

// gate holds up the pipeline after a revision while it is shut, so that changes gather.
type gate struct{ sync.Mutex }

func (g *gate) Committed(*revision.Snapshot, normalise.Delta, time.Duration, time.Duration) {
	g.Lock()
	g.Unlock() //nolint:staticcheck // it only waits
}
func (*gate) Failed(error) {}

// rig is config-watcher from its sources to its subscribers.
type rig struct {
	t       *testing.T
	dir     string
	store   *memory.Store
	cluster *cluster
	joined  *aggregate.Aggregate
	line    *pipeline.Pipeline
	log     *revision.Log
	gate    *gate
	watch   configv1.ConfigServiceClient

	clock *testkit.Clock // of creation times

	drawn int // number of states drawn so far
	// history are the changes made so far, one a line.
	history strings.Builder

	// Objects that each source must deliver, by source; files by the name of the file.
	files  map[string]map[ident]drawn // newest content
	good   map[string]map[ident]drawn // of each file: last good versions
	stored map[ident]storedObject
}

type storedObject struct {
	drawn
	created time.Time
}

type watchOnly struct {
	configv1.UnimplementedConfigServiceServer
	*fanout.Server
}

func (w watchOnly) Watch(s grpc.BidiStreamingServer[configv1.WatchRequest, configv1.WatchResponse]) error {
	return w.Server.Watch(s)
}

// newRig starts one in a directory, which reads an API server, and returns its end.
func newRig(t *testing.T, dir string, api apiservertest.Config) (*rig, func()) {
	log := testkit.Logger(t)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	r := &rig{
		t: t, dir: dir, gate: &gate{}, log: revision.NewLog("e", clock.Real()),
		clock: testkit.NewClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)),
		files: map[string]map[ident]drawn{}, good: map[string]map[ident]drawn{}, stored: map[ident]storedObject{},
	}
	var err error
	if r.cluster, err = newCluster(r, api); err != nil {
		t.Fatal(err)
	}
	r.store = memory.New(memory.Config{FS: fileio.FS{}, Log: log, Clock: r.clock})
	files := file.New(file.Config{Name: "file", Paths: []string{dir}, Grace: time.Millisecond, Log: log, Clock: clock.Real()})
	sources := []source.Source{r.store, r.cluster, files}
	r.line = pipeline.New(pipeline.Config{
		Mesh: normalise.New(normalise.Config{}), Log: log, Out: r.log, Clock: clock.Real(), Observe: r.gate,
	})
	settled := func() bool {
		return !slices.ContainsFunc(sources, func(s source.Source) bool { return !s.HasSynced() })
	}
	r.joined = aggregate.New(log, r.line.Submit, "", sources...)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = r.line.Run(ctx, pipeline.Ends{Settled: settled}) })
	for _, s := range sources {
		running.Go(func() { _ = s.Run(ctx) })
	}
	lis, dialer := testkit.Bufconn(t)
	g, fan := grpc.NewServer(), fanout.NewServer(r.log, log, &configv1.Subscriber{Instance: "test"}, nil)
	configv1.RegisterConfigServiceServer(g, watchOnly{Server: fan})
	running.Go(func() { _ = g.Serve(lis) })
	conn, err := grpc.NewClient("passthrough:///test", dialer, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	r.watch = configv1.NewConfigServiceClient(conn)
	<-r.store.Loaded()
	return r, func() {
		stop()
		fan.Stop()
		_ = conn.Close()
		g.Stop()
		running.Wait()
		r.cluster.api.Close()
	}
}

// note adds a line to the history.
func (r *rig) note(what string, about ...drawn) {
	r.history.WriteString(what)
	for _, d := range about {
		state := ""
		if d.broken {
			state = " broken"
		}
		fmt.Fprintf(&r.history, " %s %s/%s %s%s;", d.ident.kind, d.ident.namespace, d.ident.name, d.version, state)
	}
	r.history.WriteByte('\n')
}

func (r *rig) decode(d drawn) (*manifest.Document, *object.Object, error) {
	docs, problems := manifest.Parse("test.yaml", []byte(d.yaml))
	if err := problems.Err(); err != nil || len(docs) != 1 {
		return nil, nil, fmt.Errorf("%d documents: %w", len(docs), err)
	}
	o, err := validate.Document(docs[0])
	return docs[0], o, err
}

// apply writes objects through the store's API: all of them or, if one is refused, none.
func (r *rig) apply(list []drawn) error {
	var writes []memory.Write
	for _, d := range list {
		doc, o, err := r.decode(d)
		if refused := err != nil; refused != d.broken {
			return fmt.Errorf("refused is %v, want %v: %w\n%s", refused, d.broken, err, d.yaml)
		}
		if err == nil {
			writes = append(writes, memory.Write{Doc: doc, Object: o, Verb: memory.Apply})
		}
	}
	if len(writes) < len(list) {
		return nil
	}
	if _, err := r.store.Write(r.t.Context(), writes, false); err != nil {
		return err
	}
	for _, d := range list {
		created := r.clock.Now()
		if before, ok := r.stored[d.ident]; ok {
			created = before.created
		}
		r.stored[d.ident] = storedObject{d, created}
	}
	return nil
}

// remove deletes an object through the store's API.
func (r *rig) remove(id ident) error {
	d, ok := r.stored[id]
	if !ok {
		return nil
	}
	_, o, err := r.decode(d.drawn)
	if err != nil {
		return err
	}
	delete(r.stored, id)
	return r.store.Delete(r.t.Context(), o.Key, "")
}

// write replaces a file with its newest content, or removes it if it is to have none. It first waits until the content
// before was read: what nobody has read is no last good version.
func (r *rig) write(name string) error {
	if err := r.read(); err != nil {
		return err
	}
	content := r.files[name]
	good := map[ident]drawn{}
	var text strings.Builder
	for _, id := range slices.SortedFunc(maps.Keys(content), compareIdents) {
		d := content[id]
		text.WriteString(d.yaml + "---\n")
		if !d.broken {
			good[id] = d
		} else if last, ok := r.good[name][id]; ok {
			good[id] = last
		}
	}
	r.good[name] = good
	if len(content) > 0 {
		// An object that is in no other file tells when the content was read, whatever it changes.
		r.drawn++
		mark := drawn{ident: ident{"v1 Namespace", "", strings.ReplaceAll(name, ".", "-")}, version: fmt.Sprint("v", r.drawn)}
		good[mark.ident] = mark
		fmt.Fprintf(&text, "{apiVersion: v1, kind: Namespace, metadata: {name: %s, labels: {%s: %s}}}\n", mark.ident.name, version, mark.version)
	}
	path := filepath.Join(r.dir, name)
	if len(content) == 0 {
		if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	part := filepath.Join(r.dir, ".part")
	if err := os.WriteFile(part, []byte(text.String()), 0o600); err != nil {
		return err
	}
	return os.Rename(part, path)
}

func compareIdents(a, b ident) int {
	return strings.Compare(a.kind+"/"+a.namespace+"/"+a.name, b.kind+"/"+b.namespace+"/"+b.name)
}

// read waits until the aggregate has the newest state of the files.
func (r *rig) read() error {
	want := map[ident]string{}
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(r.good))) {
		for id, d := range r.good[name] {
			want[id] = d.version
		}
	}
	return eventually(func() error {
		got := map[ident]string{}
		for _, all := range r.joined.All() {
			for _, o := range all {
				if o.Source == "file" {
					got[identOf(o)] = o.Labels[version]
				}
			}
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("objects of files (-want +got):\n%s", cmp.Diff(want, got, cmp.AllowUnexported(ident{})))
		}
		return nil
	})
}

// patience bounds a wait. After one that was in vain it is shorter, so that rapid finds a shorter history that fails.
var patience atomic.Int64

func init() { patience.Store(int64(testkit.Patience)) }

// eventually is testkit.Eventually for a function that rapid calls, which must not end the test.
func eventually(holds func() error) (err error) {
	defer func() {
		if err != nil {
			patience.Store(int64(2 * time.Second))
		}
	}()
	_ = wait.PollUntilContextTimeout(context.Background(), time.Millisecond, time.Duration(patience.Load()), true,
		func(context.Context) (bool, error) {
			err = holds()
			return err == nil, nil
		})
	return err
}

func identOf(o *object.Object) ident {
	return ident{o.APIVersion + " " + o.Key.Kind, o.Key.Namespace, o.Key.Name}
}

// candidate is an object of one source.
type candidate struct {
	created time.Time
	options []string
}

// expected are the versions of each object of which one must be in force, "" meaning none: those of the object that was
// created first, else of one that states no time, as in files; of two from the same second, that of the store.
func (r *rig) expected() map[ident][]string {
	all := map[ident][]candidate{}
	for id, d := range r.stored {
		all[id] = append(all[id], candidate{d.created, []string{d.version}})
	}
	for id, o := range r.cluster.objects {
		all[id] = append(all[id], candidate{o.created, o.options()})
	}
	for id, list := range all {
		slices.SortStableFunc(list, func(a, b candidate) int { return a.created.Compare(b.created) })
		all[id] = list
	}
	for _, name := range slices.Sorted(maps.Keys(r.good)) {
		for id, d := range r.good[name] {
			all[id] = append(all[id], candidate{options: []string{d.version}})
		}
	}
	out := map[ident][]string{}
	for id, list := range all {
		for _, c := range list {
			out[id] = append(slices.DeleteFunc(out[id], func(v string) bool { return v == "" }), c.options...)
			if !slices.Contains(c.options, "") {
				break
			}
		}
	}
	return out
}

// differences says which objects are not in force as expected.
func differences(expected map[ident][]string, got map[ident]string) (out []string) {
	for id, options := range expected {
		if !slices.Contains(options, got[id]) {
			out = append(out, fmt.Sprintf("%v: version %q is in force, want one of %q", id, got[id], options))
		}
	}
	for id, v := range got {
		if expected[id] == nil {
			out = append(out, fmt.Sprintf("%v: version %q is in force, want none", id, v))
		}
	}
	return sorted(out)
}

// inForce are the objects that the aggregate has in force, and their versions.
func (r *rig) inForce() (list []*object.Object, versions map[ident]string) {
	versions = map[ident]string{}
	for _, all := range r.joined.All() {
		o := all[0]
		list = append(list, o)
		versions[identOf(o)] = o.Labels[version]
	}
	return list, versions
}

// subscriber holds what a stream has sent.
type subscriber struct {
	stream   grpc.BidiStreamingClient[configv1.WatchRequest, configv1.WatchResponse]
	held     map[resource.Key]*configv1.Resource
	sequence uint64
	stop     func()
}

// subscribe opens a stream that says that it holds something.
func (r *rig) subscribe(held map[resource.Key]*configv1.Resource) (*subscriber, error) {
	ctx, stop := context.WithTimeout(r.t.Context(), testkit.Patience)
	stream, err := r.watch.Watch(ctx)
	if err != nil {
		stop()
		return nil, err
	}
	s := &subscriber{stream: stream, held: held, stop: stop}
	parts := map[string]*configv1.Held{}
	for k, res := range held {
		if parts[k.Kind] == nil {
			parts[k.Kind] = &configv1.Held{Kind: k.Kind}
		}
		parts[k.Kind].Keys = append(parts[k.Kind].Keys, k.Namespace+"/"+k.Name)
		parts[k.Kind].Hashes = append(parts[k.Kind].Hashes, res.Hash...)
	}
	for _, p := range parts {
		if err := stream.Send(&configv1.WatchRequest{Message: &configv1.WatchRequest_Held{Held: p}}); err != nil {
			return nil, err
		}
	}
	hello := &configv1.WatchHello{Subscriber: &configv1.Subscriber{Instance: "test"}}
	return s, stream.Send(&configv1.WatchRequest{Message: &configv1.WatchRequest_Hello{Hello: hello}})
}

// until takes revisions over up to a number.
func (s *subscriber) until(sequence uint64) error {
	for s.sequence < sequence {
		m, err := s.stream.Recv()
		if err != nil {
			return err
		}
		for _, res := range m.Upserts {
			s.held[resource.KeyOf(res.Key)] = res
		}
		for _, k := range m.Removed {
			delete(s.held, resource.KeyOf(k))
		}
		if m.Commit {
			s.sequence = m.Revision.Sequence
		}
	}
	return nil
}
