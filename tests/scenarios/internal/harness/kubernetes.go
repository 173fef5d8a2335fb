package harness

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/tests/scenarios/internal/apiserver"
	"fairlead.dev/tests/scenarios/internal/format"
)

// kubernetes writes objects to an API server, from which config-watcher reads them.
type kubernetes struct {
	api     *apiserver.Server
	objects configv1.ConfigStoreServiceClient
	// sources is config-watcher's page of them, which the token opens.
	client  *http.Client
	sources string
	token   string
}

func newKubernetes(api *apiserver.Server, objects configv1.ConfigStoreServiceClient, at watcher) (*kubernetes, error) {
	token, err := os.ReadFile(at.tokenFile)
	return &kubernetes{api: api, objects: objects, client: client(at.from), sources: "http://" + at.ops + "/debug/sources",
		token: string(token)}, err
}

// write implements writer. Unlike config-watcher's own store an API server takes objects one by one: if one is refused,
// those before it are taken back.
func (k *kubernetes) write(ctx context.Context, docs []document, held map[string]document) (revision uint64, read func(document) bool,
	err error) {
	after := maps.Clone(held)
	for _, d := range docs {
		if d.content == nil {
			return 0, nil, &Refused{Text: "not an object: " + d.text}
		}
		after[d.ref()] = d
	}
	again, err := k.younger(ctx, docs, held)
	if err != nil {
		return 0, nil, err
	}
	w := newWritten(held, again)
	if err = w.put(ctx, k.api, inOrderOfAge(append(again, docs...))); err == nil {
		if revision, err = k.settle(ctx, w, docs, after); err == nil {
			err = k.refused(ctx, docs)
		}
	}
	if refused := (*Refused)(nil); errors.As(err, &refused) {
		err = errors.Join(err, k.takeBack(ctx, w.done, held))
	}
	return revision, func(document) bool { return true }, err
}

// written are objects that the API server has taken.
type written struct {
	mu       sync.Mutex
	done     []document
	versions map[string]uint64
	// there are those that were there before.
	there map[string]bool
}

func newWritten(held map[string]document, gone []document) *written {
	w := &written{versions: map[string]uint64{}, there: map[string]bool{}}
	for name := range held {
		w.there[name] = true
	}
	for _, d := range gone {
		delete(w.there, d.ref())
	}
	return w
}

// together are kinds of which objects are written at the same time: those that a topology has many of.
var together = []string{"Namespace", "Node", "Pod", "Service"}

// put writes objects in their order.
func (w *written) put(ctx context.Context, api *apiserver.Server, docs []document) error {
	for len(docs) > 0 {
		n := 1
		for n < len(docs) && slices.Contains(together, docs[n].kind()) && docs[n].kind() == docs[0].kind() {
			n++
		}
		if err := each(docs[:n], func(d document) error { return w.one(ctx, api, d) }); err != nil {
			return err
		}
		docs = docs[n:]
	}
	return nil
}

func (w *written) one(ctx context.Context, api *apiserver.Server, d document) error {
	now, err := api.Put(ctx, d.content, w.there[d.ref()])
	if denied := (*apiserver.Denied)(nil); errors.As(err, &denied) {
		return &Refused{Text: denied.Text, Kubernetes: !denied.Webhook}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", d.ref(), err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done = append(w.done, d)
	w.saw(now)
	return nil
}

func (w *written) saw(now apiserver.Written) {
	w.versions[now.Kind] = max(w.versions[now.Kind], now.Version)
}

// age is when the object says that it was created; zero if it says nothing.
func (d document) age() time.Time {
	at, _ := time.Parse(time.RFC3339, d.member("metadata", "creationTimestamp")) // what is no time is none
	return at
}

// inOrderOfAge sorts objects by when they say that they were created; those that say nothing are created now. An API
// server sets the time itself, so that only the order is as the objects say.
func inOrderOfAge(docs []document) []document {
	now := time.Now()
	age := func(d document) time.Time {
		if at := d.age(); !at.IsZero() {
			return at
		}
		return now
	}
	docs = slices.Clone(docs)
	slices.SortStableFunc(docs, func(a, b document) int { return age(a).Compare(age(b)) })
	return docs
}

// younger removes, and returns, the objects that say that they are younger than a new one of their kind, so that they
// are created once more after it.
func (k *kubernetes) younger(ctx context.Context, docs []document, held map[string]document) (again []document, err error) {
	for _, name := range slices.Sorted(maps.Keys(held)) {
		old := held[name]
		if old.age().IsZero() || slices.ContainsFunc(docs, func(d document) bool { return d.ref() == name }) ||
			!slices.ContainsFunc(docs, func(d document) bool {
				_, there := held[d.ref()]
				return !there && d.kind() == old.kind() && !d.age().IsZero() && d.age().Before(old.age())
			}) {
			continue
		}
		if err := k.api.Delete(ctx, old.member("apiVersion"), old.kind(), old.member("metadata", "namespace"),
			old.member("metadata", "name")); err != nil {
			return again, err
		}
		again = append(again, old)
	}
	return again, nil
}

// settle returns the revision that has what was written, and what controllers have made of it.
func (k *kubernetes) settle(ctx context.Context, w *written, docs []document, held map[string]document) (uint64, error) {
	if slices.ContainsFunc(docs, func(d document) bool { return d.kind() == "Service" || d.kind() == "Pod" }) {
		newest, err := k.api.AwaitSlices(ctx, endpointsOf(held))
		if err != nil {
			return 0, err
		}
		w.saw(newest)
	}
	if err := until(ctx, readyWithin, func() error { return k.hasRead(ctx, w.versions) }); err != nil {
		return 0, err
	}
	return k.fence(ctx)
}

// hasRead tells whether config-watcher has what was written.
func (k *kubernetes) hasRead(ctx context.Context, versions map[string]uint64) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, k.sources, http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+k.token)
	resp, err := k.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var page struct {
		Sources []struct {
			Name     string            `json:"name"`
			Versions map[string]string `json:"versions"`
		} `json:"sources"`
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("config-watcher's sources: %s", resp.Status)
	}
	if err := json.NewDecoder(resp.Body).Decode(&page); err != nil {
		return fmt.Errorf("config-watcher's sources: %w", err)
	}
	for _, source := range page.Sources {
		for kind, at := range source.Versions {
			// A kind that was not listed yet has no version.
			if read, _ := strconv.ParseUint(at, 10, 64); read < versions[kind] {
				return fmt.Errorf("config-watcher has read %s up to version %q, not %d", kind, at, versions[kind])
			}
		}
	}
	return nil
}

// fence returns a revision that has all that config-watcher has read. It writes a Secret that nothing refers to into
// config-watcher's own store, whose answer comes after that revision if the Secret is another than the last one, which
// a topology before may have written.
func (k *kubernetes) fence(ctx context.Context) (revision uint64, err error) {
	text := encode(object("Secret", format.RootNamespace, "fence", tree{"stringData": tree{"n": rand.Text()}}))
	err = until(ctx, readyWithin, func() error {
		resp, err := k.objects.Apply(ctx, &configv1.ApplyRequest{Documents: []*configv1.Document{{Name: "fence", Content: []byte(text)}}},
			grpc.WaitForReady(true))
		if err != nil {
			return explain(err)
		}
		if revision = resp.Revision; revision == 0 {
			return errors.New("config-watcher has no revision yet")
		}
		return nil
	})
	return revision, err
}

// ofMesh tells of kinds that the webhook checks.
func (d document) ofMesh() bool {
	group, _, _ := strings.Cut(d.member("apiVersion"), "/")
	return strings.HasSuffix(group, ".istio.io") || group == "fairlead.dev"
}

// refused tells which objects config-watcher has read and refused. Those of the mesh's kinds the webhook has checked.
func (k *kubernetes) refused(ctx context.Context, docs []document) error {
	docs = slices.DeleteFunc(slices.Clone(docs), func(d document) bool {
		return d.ofMesh() || slices.Contains([]string{"Pod", "Node", "Namespace", "Secret"}, d.kind())
	})
	if len(docs) == 0 {
		return nil
	}
	resp, err := k.objects.Status(ctx, &configv1.StatusRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return explain(err)
	}
	var all []string
	for _, f := range resp.Findings {
		if f.Type == configv1.FindingType_FINDING_TYPE_REFUSED &&
			slices.ContainsFunc(docs, func(d document) bool { return d.isNamed(f.Object) }) {
			all = append(all, f.Object+": "+f.Message)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return &Refused{Text: strings.Join(all, "\n")}
}

// isNamed tells whether "Kind namespace/name" or "Kind name" names the object.
func (d document) isNamed(name string) bool {
	kind, rest, _ := strings.Cut(name, " ")
	if !strings.Contains(rest, "/") {
		rest = "/" + rest
	}
	return d.ref() == kind+"/"+rest
}

// takeBack makes objects what they were.
func (k *kubernetes) takeBack(ctx context.Context, docs []document, held map[string]document) error {
	w := newWritten(held, nil)
	var gone []string
	for _, d := range docs {
		if before, ok := held[d.ref()]; !ok {
			gone = append(gone, d.ref())
		} else if err := w.one(ctx, k.api, before); err != nil {
			return err
		}
	}
	if _, err := k.settle(ctx, w, docs, held); err != nil || len(gone) == 0 {
		return err
	}
	return k.remove(ctx, gone, held)
}

// remove implements writer.
func (k *kubernetes) remove(ctx context.Context, refs []string, held map[string]document) error {
	after := maps.Clone(held)
	var docs []document
	if err := each(refs, func(name string) error {
		kind, namespace, object, err := parseRef(name)
		if err == nil {
			err = k.api.Delete(ctx, held[ref(kind, namespace, object)].member("apiVersion"), kind, namespace, object)
		}
		if err != nil {
			return fmt.Errorf("delete %s: %w", name, err)
		}
		return nil
	}); err != nil {
		return err
	}
	for _, name := range refs {
		kind, namespace, object, _ := parseRef(name) // as above
		delete(after, ref(kind, namespace, object))
		docs = append(docs, document{content: tree{"kind": kind, "metadata": tree{"namespace": namespace, "name": object}}})
	}
	if err := until(ctx, readyWithin, func() error { return k.haveGone(ctx, docs) }); err != nil {
		return err
	}
	_, err := k.settle(ctx, newWritten(after, nil), docs, after)
	return err
}

// haveGone tells whether config-watcher has none of the objects any more.
func (k *kubernetes) haveGone(ctx context.Context, docs []document) error {
	resp, err := k.objects.List(ctx, &configv1.ListRequest{InForce: true, WithoutManifests: true}, grpc.WaitForReady(true))
	if err != nil {
		return explain(err)
	}
	there := map[string]bool{}
	for _, o := range resp.Objects {
		there[ref(o.Key.GetKind(), o.Key.GetNamespace(), o.Key.GetName())] = true
	}
	for _, d := range docs {
		if there[d.ref()] {
			return fmt.Errorf("config-watcher still has %s", d.ref())
		}
	}
	return nil
}

// endpointsOf are the Pods of each Service that has a selector, by namespace/name.
func endpointsOf(held map[string]document) map[string]apiserver.Endpoints {
	out := map[string]apiserver.Endpoints{}
	for _, service := range held {
		selector := service.strings("spec", "selector")
		if service.kind() != "Service" || len(selector) == 0 || service.member("spec", "type") == "ExternalName" {
			continue
		}
		endpoints := apiserver.Endpoints{}
		for _, pod := range held {
			if pod.kind() != "Pod" || pod.member("metadata", "namespace") != service.member("metadata", "namespace") || !pod.hasLabels(selector) {
				continue
			}
			for _, ip := range pod.addresses() {
				if service.hasFamily(ip.Is6()) {
					endpoints[ip] = pod.ready() || service.at("spec", "publishNotReadyAddresses") == true
				}
			}
		}
		out[service.member("metadata", "namespace")+"/"+service.member("metadata", "name")] = endpoints
	}
	return out
}

// hasFamily tells whether a Service has addresses of a family.
func (d document) hasFamily(ip6 bool) bool {
	if families := d.list("spec", "ipFamilies"); len(families) > 0 && d.member("spec", "ipFamilyPolicy") == "" {
		return slices.Contains(families, any(map[bool]string{false: "IPv4", true: "IPv6"}[ip6]))
	}
	own := addressesOf(append([]any{d.member("spec", "clusterIP")}, d.list("spec", "clusterIPs")...))
	for _, ip := range own {
		if ip.Is6() == ip6 {
			return true
		}
	}
	return len(own) == 0 && !ip6
}

// forward brings connections of the hub to the API server, which runs where the tests run, until the returned function
// is called.
func forward(at string, hub func(ctx context.Context, network, address string) (net.Listener, error)) (stop func() error, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	lis, err := hub(ctx, "tcp", at)
	if err != nil {
		cancel()
		return nil, err
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return // closed
			}
			all.Go(func() { pipe(ctx, conn, at) })
		}
	})
	return func() error {
		cancel()
		err := lis.Close()
		all.Wait()
		return err
	}, nil
}

// pipe copies between a connection and a new one to an address, until either ends or ctx does.
func pipe(ctx context.Context, from net.Conn, to string) {
	defer from.Close()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", to)
	if err != nil {
		return
	}
	defer conn.Close()
	ended := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{from, conn}, {conn, from}} {
		go func() {
			_, _ = io.Copy(way[0], way[1]) // the other way ends with it
			ended <- struct{}{}
		}()
	}
	select {
	case <-ended:
	case <-ctx.Done():
	}
}
