package consul

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fetch"
	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
	"fairlead.dev/services/config-watcher/internal/source/consul/catalog"
	"fairlead.dev/services/config-watcher/internal/source/consul/registry"
	"fairlead.dev/services/config-watcher/internal/source/lastgood"
)

// datacenter is a catalog in memory. It tells what its functions set, as the client of Consul does.
type datacenter struct {
	mu          sync.Mutex
	services    map[string][]registry.Instance
	to          Handler
	connections []Connection
	away        error
	// synced is true once everything was told to the Handler of now.
	synced bool
	// following is added to what Status tells.
	following Following
}

// follow is a Config.Follow.
func (d *datacenter) follow(c Connection) Follower {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.connections = append(d.connections, c)
	return d
}

// Run implements Follower.
func (d *datacenter) Run(ctx context.Context, to Handler) error {
	d.mu.Lock()
	d.to, d.synced = to, false
	d.tell()
	d.mu.Unlock()
	<-ctx.Done()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.to = nil
	return nil
}

// tell tells everything. It is called with mu held.
func (d *datacenter) tell() {
	if d.to == nil || d.away != nil {
		return
	}
	filter := d.connections[len(d.connections)-1].Filter
	names := slices.DeleteFunc(sorted(d.services), func(name string) bool { return !filter(name) })
	d.synced = true
	d.to.Names(names)
	for _, name := range names {
		d.to.Service(name, d.services[name])
	}
	d.to.Whole(true)
}

// Reconnect implements Follower.
func (d *datacenter) Reconnect(c Connection) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.connections = append(d.connections, c)
	d.tell()
}

// Refresh implements Follower.
func (d *datacenter) Refresh(...string) {
	go func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.tell()
	}()
}

// Status implements Follower.
func (d *datacenter) Status() Following {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := d.following
	out.Synced, out.Degraded = d.synced, d.away
	return out
}

// set changes the catalog and tells it.
func (d *datacenter) set(change func(map[string][]registry.Instance)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.services == nil {
		d.services = map[string][]registry.Instance{}
	}
	change(d.services)
	d.tell()
}

func (d *datacenter) connected() []Connection {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.connections)
}

var errAway = errors.New("nobody answers")

// instances are n passing ones of a service.
func instances(service string, n int) []registry.Instance {
	out := make([]registry.Instance, n)
	for i := range out {
		out[i] = registry.Instance{Node: fmt.Sprint("n", i), Datacenter: "dc1", ID: fmt.Sprint(service, i), Service: service,
			Address: fmt.Sprintf("10.0.%d.%d", i/250, i%250+1), Port: 8080, Status: registry.StatusPassing}
	}
	slices.SortFunc(out, catalog.Compare)
	return out
}

// mesh holds what is delivered.
type mesh struct {
	t  testing.TB
	mu sync.Mutex
	// objects by key; batches are the events of each delivery.
	objects map[object.Key]*object.Object
	batches [][]source.Event
	// watch is called for each delivery, with mu held.
	watch func()
}

func (m *mesh) handle(_ context.Context, from string, events []source.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(events) > source.MaxTogether {
		m.t.Errorf("%d events together", len(events))
	}
	m.batches = append(m.batches, events)
	for _, e := range events {
		switch {
		case e.Object == nil && m.objects[e.Key] == nil:
			m.t.Errorf("%s is removed though absent", e.Key)
		case e.Object == nil:
			delete(m.objects, e.Key)
		default:
			if e.Object.Source != from || e.Object.Key != e.Key {
				m.t.Errorf("%s of %s is delivered as %s by %s", e.Object.Key, e.Object.Source, e.Key, from)
			}
			m.objects[e.Key] = e.Object
		}
	}
	if m.watch != nil {
		m.watch()
	}
}

func (m *mesh) copy() map[object.Key]*object.Object {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.objects)
}

// text lists the hosts, and how many endpoints the WorkloadEntries are.
func (m *mesh) text() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.textNow()
}

func (m *mesh) textNow() string {
	count := map[string]int{}
	for _, o := range m.objects {
		if o.Key.Kind == "WorkloadEntry" {
			count[o.Key.Namespace+"/"+o.Registered.Service]++
		}
	}
	out := []string{}
	for _, o := range m.objects {
		if se, ok := o.Body.(*networking.ServiceEntry); ok {
			out = append(out, fmt.Sprintf("%s %s:%d", o.Key.Namespace, se.Hosts[0], count[o.Key.Namespace+"/"+o.Key.Name]))
			delete(count, o.Key.Namespace+"/"+o.Key.Name)
		}
	}
	slices.Sort(out)
	if len(count) > 0 {
		out = append(out, fmt.Sprint("orphans ", count))
	}
	return fmt.Sprint(out)
}

// becomes waits for a text.
func (m *mesh) becomes(want string) {
	m.t.Helper()
	testkit.Eventually(m.t, testkit.Patience, func() error {
		if got := m.text(); got != want {
			return fmt.Errorf("the mesh has %s, want %s", got, want)
		}
		return nil
	})
}

// rig runs Registries with a datacenter in memory.
type rig struct {
	*Registries
	t      *testing.T
	dc     *datacenter
	mesh   *mesh
	client *fake.Clientset
	dir    string
	state  string
	stop   func()
}

// newRig makes a rig that does not run.
func newRig(t *testing.T) *rig {
	return &rig{t: t, dc: &datacenter{}, client: fake.NewClientset(), dir: t.TempDir(), state: t.TempDir(),
		mesh: &mesh{t: t, objects: map[object.Key]*object.Object{}}}
}

// run starts, or starts again with an empty mesh.
func (r *rig) run(change ...func(*Config)) *rig {
	r.t.Helper()
	if r.stop != nil {
		r.stop()
		r.mesh.mu.Lock()
		r.mesh.objects = map[object.Key]*object.Object{}
		r.mesh.mu.Unlock()
	}
	saved := lastgood.New(lastgood.Config{Path: r.state, FS: fileio.FS{}, Log: testkit.Logger(r.t), Clock: clock.Real()})
	cfg := Config{Secrets: r.client.CoreV1().Secrets("istio-system"), Namespace: "istio-system", Dir: r.dir, Domain: "cluster.local",
		System: "istio-system", Timeout: time.Minute, Follow: r.dc.follow, Saved: saved, Log: testkit.Logger(r.t), Clock: clock.Real(),
		Addresses: fetch.Addresses{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}}
	for _, f := range change {
		f(&cfg)
	}
	r.Registries = New(cfg)
	r.Handle(r.mesh.handle)
	end := testkit.Background(r.t, r.Run)
	r.stop = sync.OnceFunc(func() {
		end()
		if err := saved.Flush(); err != nil {
			r.t.Error(err)
		}
	})
	return r
}

// file writes a file of the directory.
func (r *rig) file(name, text string) {
	r.t.Helper()
	testkit.WriteFile(r.t, filepath.Join(r.dir, name), []byte(text))
}

func (r *rig) removeFile(name string) {
	r.t.Helper()
	testkit.NoError(r.t, os.Remove(filepath.Join(r.dir, name)))
}

// secret writes a Secret; age is in hours.
func (r *rig) secret(name string, age int, data map[string]string) {
	r.t.Helper()
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "istio-system", Name: name,
		Labels:            map[string]string{"fairlead.dev/registry": "consul"},
		CreationTimestamp: metav1.NewTime(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).Add(-time.Duration(age) * time.Hour))},
		Data: map[string][]byte{}}
	for k, v := range data {
		s.Data[k] = []byte(v)
	}
	secrets := r.client.CoreV1().Secrets("istio-system")
	_, err := secrets.Update(r.t.Context(), s, metav1.UpdateOptions{})
	if err != nil {
		_, err = secrets.Create(r.t.Context(), s, metav1.CreateOptions{})
	}
	testkit.NoError(r.t, err)
}

// rows waits until the declarations are as described: "name state: part of the message".
func (r *rig) rows(want ...string) {
	r.t.Helper()
	testkit.Eventually(r.t, testkit.Patience, func() error {
		got := []string{}
		for _, row := range r.List() {
			got = append(got, fmt.Sprintf("%s %s: %s", row.Name, row.State, row.Message))
		}
		if !slices.EqualFunc(got, want, matchesRow) {
			return fmt.Errorf("registries %q, want %q", got, want)
		}
		return nil
	})
}

// grep names a file below a directory that has a text; "" for none.
func grep(t *testing.T, dir, text string) (found string) {
	t.Helper()
	testkit.NoError(t, filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if strings.Contains(string(content), text) {
			found = path
		}
		return err
	}))
	return found
}
