package store

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/tests/internal/probe"
	"fairlead.dev/tests/internal/wait"
	"fairlead.dev/tests/scenarios/internal/apiserver"
	"fairlead.dev/tests/scenarios/internal/document"
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

func newKubernetes(api *apiserver.Server, objects configv1.ConfigStoreServiceClient, at Watcher) (*kubernetes, error) {
	token, err := os.ReadFile(at.TokenFile)
	return &kubernetes{api: api, objects: objects, client: probe.Client(at.Dial), sources: "http://" + at.Ops + "/debug/sources",
		token: string(token)}, err
}

// write implements writer. Unlike config-watcher's own store an API server takes objects one by one: if one is refused,
// those before it are taken back.
func (k *kubernetes) write(ctx context.Context, docs []document.Document, held set) (
	revision uint64, read func(document.Document) bool, err error) {
	after := maps.Clone(held)
	for _, d := range docs {
		if d.Content == nil {
			return 0, nil, &Refused{Text: "not an object: " + d.Text}
		}
		after[d.Ref()] = d
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
	return revision, func(document.Document) bool { return true }, err
}

// written are objects that the API server has taken.
type written struct {
	mu       sync.Mutex
	done     []document.Document
	versions map[string]uint64
	// there are those that were there before.
	there map[string]bool
}

func newWritten(held set, gone []document.Document) *written {
	w := &written{versions: map[string]uint64{}, there: map[string]bool{}}
	for name := range held {
		w.there[name] = true
	}
	for _, d := range gone {
		delete(w.there, d.Ref())
	}
	return w
}

// together are kinds of which objects are written at the same time: those that a topology has many of.
var together = []string{"Namespace", "Node", "Pod", "Service"}

// put writes objects in their order.
func (w *written) put(ctx context.Context, api *apiserver.Server, docs []document.Document) error {
	for len(docs) > 0 {
		n := 1
		for n < len(docs) && slices.Contains(together, docs[n].Kind()) && docs[n].Kind() == docs[0].Kind() {
			n++
		}
		if err := wait.Each(docs[:n], func(d document.Document) error { return w.one(ctx, api, d) }); err != nil {
			return err
		}
		docs = docs[n:]
	}
	return nil
}

func (w *written) one(ctx context.Context, api *apiserver.Server, d document.Document) error {
	now, err := api.Put(ctx, d.Content, w.there[d.Ref()])
	if denied := (*apiserver.Denied)(nil); errors.As(err, &denied) {
		return &Refused{Text: denied.Text, Kubernetes: !denied.Webhook}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", d.Ref(), err)
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

// inOrderOfAge sorts objects by when they say that they were created; those that say nothing are created now. An API
// server sets the time itself, so that only the order is as the objects say.
func inOrderOfAge(docs []document.Document) []document.Document {
	now := time.Now()
	age := func(d document.Document) time.Time {
		if at := d.Age(); !at.IsZero() {
			return at
		}
		return now
	}
	docs = slices.Clone(docs)
	slices.SortStableFunc(docs, func(a, b document.Document) int { return age(a).Compare(age(b)) })
	return docs
}

// younger removes, and returns, the objects that say that they are younger than a new one of their kind, so that they
// are created once more after it.
func (k *kubernetes) younger(ctx context.Context, docs []document.Document, held set) (again []document.Document, err error) {
	for _, name := range slices.Sorted(maps.Keys(held)) {
		old := held[name]
		if old.Age().IsZero() || slices.ContainsFunc(docs, func(d document.Document) bool { return d.Ref() == name }) ||
			!slices.ContainsFunc(docs, func(d document.Document) bool {
				_, there := held[d.Ref()]
				return !there && d.Kind() == old.Kind() && !d.Age().IsZero() && d.Age().Before(old.Age())
			}) {
			continue
		}
		if err := k.api.Delete(ctx, old.Member("apiVersion"), old.Kind(), old.Namespace(), old.Name()); err != nil {
			return again, err
		}
		again = append(again, old)
	}
	return again, nil
}

// settle returns the revision that has what was written, and what controllers have made of it.
func (k *kubernetes) settle(ctx context.Context, w *written, docs []document.Document, held set) (uint64, error) {
	if slices.ContainsFunc(docs, func(d document.Document) bool { return d.Kind() == "Service" || d.Kind() == "Pod" }) {
		newest, err := k.api.AwaitSlices(ctx, endpointsOf(held))
		if err != nil {
			return 0, err
		}
		w.saw(newest)
	}
	if err := wait.Until(ctx, often, readWithin, func() error { return k.hasRead(ctx, w.versions) }); err != nil {
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
	secret := document.Object("Secret", format.RootNamespace, "fence", document.Tree{"stringData": document.Tree{"n": rand.Text()}})
	err = wait.Until(ctx, often, readWithin, func() error {
		doc := &configv1.Document{Name: "fence", Content: []byte(document.Encode(secret))}
		resp, err := k.objects.Apply(ctx, &configv1.ApplyRequest{Documents: []*configv1.Document{doc}}, grpc.WaitForReady(true))
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

// refused tells which objects config-watcher has read and refused. Those of the mesh's kinds the webhook has checked.
func (k *kubernetes) refused(ctx context.Context, docs []document.Document) error {
	docs = slices.DeleteFunc(slices.Clone(docs), func(d document.Document) bool {
		return d.OfMesh() || slices.Contains([]string{"Pod", "Node", "Namespace", "Secret"}, d.Kind())
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
			slices.ContainsFunc(docs, func(d document.Document) bool { return d.IsNamed(f.Object) }) {
			all = append(all, f.Object+": "+f.Message)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return &Refused{Text: strings.Join(all, "\n")}
}

// takeBack makes objects what they were.
func (k *kubernetes) takeBack(ctx context.Context, docs []document.Document, held set) error {
	w := newWritten(held, nil)
	var gone []string
	for _, d := range docs {
		if before, ok := held[d.Ref()]; !ok {
			gone = append(gone, d.Ref())
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
func (k *kubernetes) remove(ctx context.Context, refs []string, held set) error {
	after := maps.Clone(held)
	var docs []document.Document
	if err := wait.Each(refs, func(name string) error {
		kind, namespace, object, err := document.ParseRef(name)
		if err == nil {
			err = k.api.Delete(ctx, held[document.Ref(kind, namespace, object)].Member("apiVersion"), kind, namespace, object)
		}
		if err != nil {
			return fmt.Errorf("delete %s: %w", name, err)
		}
		return nil
	}); err != nil {
		return err
	}
	for _, name := range refs {
		kind, namespace, object, _ := document.ParseRef(name) // as above
		delete(after, document.Ref(kind, namespace, object))
		docs = append(docs, document.Document{Content: document.Object(kind, namespace, object, nil)})
	}
	if err := wait.Until(ctx, often, readWithin, func() error { return k.haveGone(ctx, docs) }); err != nil {
		return err
	}
	_, err := k.settle(ctx, newWritten(after, nil), docs, after)
	return err
}

// haveGone tells whether config-watcher has none of the objects any more.
func (k *kubernetes) haveGone(ctx context.Context, docs []document.Document) error {
	resp, err := k.objects.List(ctx, &configv1.ListRequest{InForce: true, WithoutManifests: true}, grpc.WaitForReady(true))
	if err != nil {
		return explain(err)
	}
	there := map[string]bool{}
	for _, o := range resp.Objects {
		there[document.Ref(document.KindName(o.Key.GetApiVersion(), o.Key.GetKind()), o.Key.GetNamespace(), o.Key.GetName())] = true
	}
	for _, d := range docs {
		if there[d.Ref()] {
			return fmt.Errorf("config-watcher still has %s", d.Ref())
		}
	}
	return nil
}
