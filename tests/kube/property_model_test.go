package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/tests/internal/kubeapi"
)

// kindOfHistory is a kind that a random history changes, with bodies of its objects.
type kindOfHistory struct {
	sample
	// broken is true if an annotation makes config-watcher refuse an object that the API server takes.
	broken bool
	bodies []string
}

var kindsOfHistory = func() []kindOfHistory {
	const networking = "networking.istio.io"
	of := func(kind, plural string, bodies ...string) kindOfHistory {
		return kindOfHistory{istio(networking, "v1", kind, plural, ""), true, bodies}
	}
	policies := kindOfHistory{istio("security.istio.io", "v1", "PeerAuthentication", "peerauthentications", ""), false,
		[]string{"spec: {mtls: {mode: STRICT}}", "spec: {mtls: {mode: PERMISSIVE}}"}}
	slices := kindOfHistory{core("EndpointSlice", ""), false, []string{
		"addressType: IPv4\nendpoints: [{addresses: [10.1.2.3]}]\nports: [{name: http, port: 8080}]",
		"addressType: IPv4\nendpoints: [{addresses: [10.1.2.4]}, {addresses: [10.1.2.5]}]\nports: [{name: http, port: 8080}]",
	}}
	slices.resource.Group = "discovery.k8s.io"
	return []kindOfHistory{
		{core("Service", ""), false, []string{"spec: {ports: [{name: http, port: 80}]}",
			"spec: {ports: [{name: http, port: 80}, {name: tcp, port: 90}]}"}}, slices,
		of("VirtualService", "virtualservices", "spec: {hosts: [x], http: [{route: [{destination: {host: z}}]}]}",
			"spec: {hosts: [x], http: [{route: [{destination: {host: x}}], timeout: 3s}]}"),
		of("DestinationRule", "destinationrules", "spec: {host: x}",
			"spec: {host: x, trafficPolicy: {connectionPool: {tcp: {maxConnections: 7}}}}"),
		of("Sidecar", "sidecars", "spec: {egress: [{hosts: ['./*']}]}", "spec: {egress: [{hosts: ['*/*']}]}"),
		of("WorkloadEntry", "workloadentries", "spec: {address: 10.4.0.1, labels: {app: a}}", "spec: {address: 10.4.0.2, labels: {app: a}}"),
		of("ServiceEntry", "serviceentries",
			"spec: {hosts: [www.example.com], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC, workloadSelector: {labels: "+
				"{app: a}}}",
			"spec: {hosts: [www.example.com], ports: [{number: 80, name: http, protocol: HTTP}], resolution: DNS}"),
		policies,
	}
}()

// objectID names an object that several sources may have.
type objectID struct {
	kind            *kindOfHistory
	namespace, name string
}

func (id objectID) String() string { return id.kind.kind + " " + id.namespace + "/" + id.name }

// versionOf is one source's version of an object.
type versionOf struct {
	uid      string
	created  time.Time // zero in a file
	state    string
	broken   bool
	manifest string
	// good are the states of which each may be in force while the newest is refused; "" is none.
	good []string
}

func (v *versionOf) options() []string {
	if v.broken {
		return v.good
	}
	return []string{v.state}
}

// history makes random changes in the API server, the configuration API and a file, and knows what must be in force.
type history struct {
	t      *testing.T
	server *kubeapi.Server
	client dynamic.Interface
	wire   *cable
	w      *watcher
	dir    string
	random *rand.Rand
	serial int
	// cluster, store and file are the objects of each source.
	cluster, store, file map[objectID]*versionOf
	frozen               bool
}

func pick[T any](h *history, list ...T) T { return list[h.random.IntN(len(list))] }

func (h *history) log(format string, args ...any) { h.t.Logf("event: "+format, args...) }

func (h *history) object() objectID {
	return objectID{&kindsOfHistory[h.random.IntN(len(kindsOfHistory))], pick(h, "apps", "apps", "other"), pick(h, "x", "x", "z")}
}

// manifest draws a new state of an object.
func (h *history) draw(id objectID) *versionOf {
	h.serial++
	v := &versionOf{state: fmt.Sprint("v", h.serial), broken: id.kind.broken && h.random.IntN(5) == 0}
	annotations := ""
	if v.broken {
		annotations = ", annotations: {internal.istio.io/parents: a}"
	}
	labels := pick(h, "app: a", "app: b", "kubernetes.io/service-name: x, app: a")
	v.manifest = fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: %s, namespace: %s, labels: {state: %s, %s}%s}\n%s\n---\n",
		id.kind.resource.GroupVersion(), id.kind.kind, id.name, id.namespace, v.state, labels, annotations, pick(h, id.kind.bodies...))
	return v
}

func (h *history) resource(id objectID) dynamic.ResourceInterface {
	return h.client.Resource(id.kind.resource).Namespace(id.namespace)
}

// put creates an object in the API server, or replaces it.
func (h *history) put(id objectID, v *versionOf) {
	h.t.Helper()
	h.log("cluster: %v becomes %s, broken %v", id, v.state, v.broken)
	list, err := kubeapi.Decode([]byte(v.manifest))
	if err != nil {
		h.t.Fatal(err)
	}
	before := h.cluster[id]
	var got *unstructured.Unstructured
	if before == nil {
		got, err = h.resource(id).Create(h.t.Context(), list[0], metav1.CreateOptions{})
	} else {
		var now *unstructured.Unstructured
		if now, err = h.resource(id).Get(h.t.Context(), id.name, metav1.GetOptions{}); err == nil {
			list[0].SetResourceVersion(now.GetResourceVersion())
			// The API server allots it, and keeps it.
			if ip, ok, _ := unstructured.NestedString(now.Object, "spec", "clusterIP"); ok {
				_ = unstructured.SetNestedField(list[0].Object, ip, "spec", "clusterIP")
			}
			got, err = h.resource(id).Update(h.t.Context(), list[0], metav1.UpdateOptions{})
		}
	}
	if err != nil {
		h.t.Fatalf("%v: %v", id, err)
	}
	v.uid, v.created, v.good = string(got.GetUID()), got.GetCreationTimestamp().Time, []string{""}
	if before != nil && before.uid == v.uid {
		v.good = before.good
	}
	if !v.broken {
		v.good = append(slices.Clone(v.good), v.state)
	}
	h.cluster[id] = v
}

func (h *history) remove(id objectID) {
	h.t.Helper()
	if h.cluster[id] == nil {
		return
	}
	h.log("cluster: %v is deleted", id)
	delete(h.cluster, id)
	if err := h.resource(id).Delete(h.t.Context(), id.name, metav1.DeleteOptions{}); err != nil {
		h.t.Fatal(err)
	}
}

// removeNamespace deletes a namespace with all in it, and makes it again.
func (h *history) removeNamespace(name string) {
	h.t.Helper()
	h.log("cluster: namespace %s is deleted", name)
	namespaces := h.server.Client(h.t).CoreV1().Namespaces()
	if err := namespaces.Delete(h.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		h.t.Fatal(err)
	}
	testkit.Eventually(h.t, patience, func() error {
		_, err := namespaces.Get(h.t.Context(), name, metav1.GetOptions{})
		if err == nil {
			err = errors.New("it is still there")
		}
		if apierrors.IsNotFound(err) {
			err = nil
		}
		return err
	})
	for id := range h.cluster {
		if id.namespace == name {
			delete(h.cluster, id)
		}
	}
	h.server.Apply(h.t, "{apiVersion: v1, kind: Namespace, metadata: {name: "+name+"}}")
}

// apply writes an object through the configuration API, which refuses one that is broken.
func (h *history) apply(id objectID, v *versionOf) {
	h.t.Helper()
	h.log("store: %v becomes %s, broken %v", id, v.state, v.broken)
	_, err := h.w.admin().Apply(h.t.Context(),
		&configv1.ApplyRequest{Documents: []*configv1.Document{{Name: "test", Content: []byte(v.manifest)}}})
	if refused := status.Code(err) == codes.InvalidArgument; err != nil && !refused || refused != v.broken {
		h.t.Fatalf("%v: %v", id, err)
	}
	if v.broken {
		return
	}
	got, err := h.w.admin().Get(h.t.Context(), &configv1.GetRequest{Key: keyOf(id)})
	if err != nil {
		h.t.Fatal(err)
	}
	var o metav1.PartialObjectMetadata
	if err := json.Unmarshal(got.GetObject().GetManifest(), &o); err != nil {
		h.t.Fatal(err)
	}
	v.created = o.CreationTimestamp.Time
	h.store[id] = v
}

func (h *history) unapply(id objectID) {
	h.t.Helper()
	if h.store[id] == nil {
		return
	}
	h.log("store: %v is deleted", id)
	delete(h.store, id)
	if _, err := h.w.admin().Delete(h.t.Context(), &configv1.DeleteRequest{Key: keyOf(id)}); err != nil {
		h.t.Fatal(err)
	}
}

func keyOf(id objectID) *configv1.ObjectKey {
	return &configv1.ObjectKey{ApiVersion: id.kind.resource.GroupVersion().String(), Kind: id.kind.kind, Namespace: id.namespace,
		Name: id.name}
}

// write replaces the file. One object is always in it: a file without any would have a grace.
func (h *history) write() {
	h.t.Helper()
	text := "{apiVersion: v1, kind: Namespace, metadata: {name: of-the-file}}\n---\n"
	for _, v := range h.file {
		text += v.manifest
	}
	part := filepath.Join(h.dir, ".part")
	if err := errors.Join(os.WriteFile(part, []byte(text), 0o600), os.Rename(part, filepath.Join(h.dir, "mesh.yaml"))); err != nil {
		h.t.Fatal(err)
	}
}

// event makes one random change.
func (h *history) event() {
	h.t.Helper()
	id := h.object()
	switch n := h.random.IntN(100); {
	case n < 50:
		h.put(id, h.draw(id))
	case n < 64:
		h.remove(id)
	case n < 74:
		h.apply(id, h.draw(id))
	case n < 79:
		h.unapply(id)
	case n < 88:
		h.file[id] = h.draw(id)
		if h.file[id].broken || h.random.IntN(3) == 0 {
			delete(h.file, id)
		}
		h.log("file: %d objects, %v among them: %v", len(h.file), id, h.file[id] != nil)
		h.write()
	case n < 93:
		h.log("connections to the API server end")
		h.wire.cut()
	case n < 97:
		if h.frozen = !h.frozen; h.frozen {
			h.log("the API server's answers stay away")
			h.wire.freeze()
		} else {
			h.log("the API server's answers come again")
			h.wire.thaw()
		}
	case n < 99:
		h.removeNamespace("other")
	default:
		h.log("the API server is restarted")
		h.server.Restart(h.t)
	}
}

// expected are the states of an object of which one must be in force, "" meaning none.
func (h *history) expected(id objectID) (out []string) {
	var list []*versionOf
	for _, source := range []map[objectID]*versionOf{h.store, h.cluster} {
		if v := source[id]; v != nil {
			list = append(list, v)
		}
	}
	slices.SortStableFunc(list, func(a, b *versionOf) int { return a.created.Compare(b.created) })
	if v := h.file[id]; v != nil {
		list = append(list, v)
	}
	for _, v := range list {
		out = append(out, v.options()...)
		if !slices.Contains(v.options(), "") {
			return slices.DeleteFunc(out, func(s string) bool { return s == "" })
		}
	}
	return append(out, "")
}

// drawValid is draw for an object that must be accepted.
func (h *history) drawValid(id objectID) *versionOf {
	for {
		if v := h.draw(id); !v.broken {
			return v
		}
	}
}

// settle ends all trouble and waits until what must be in force is.
func (h *history) settle() {
	h.t.Helper()
	h.frozen = false
	h.wire.thaw()
	// A kind's changes arrive in order, so that a marker says that those before it have arrived.
	for i := range kindsOfHistory {
		id := objectID{&kindsOfHistory[i], "apps", "marker"}
		h.put(id, h.drawValid(id))
	}
	// The file is read as a whole.
	inFile := objectID{&kindsOfHistory[0], "other", "marker"}
	h.file[inFile] = h.drawValid(inFile)
	h.write()
	admin := h.w.admin()
	for i := range kindsOfHistory {
		ids := []objectID{inFile, {&kindsOfHistory[i], "apps", "marker"}}
		for _, namespace := range []string{"apps", "other"} {
			ids = append(ids, objectID{&kindsOfHistory[i], namespace, "x"}, objectID{&kindsOfHistory[i], namespace, "z"})
		}
		for _, id := range ids {
			testkit.Eventually(h.t, patience, func() error {
				state, err := inForce(h.t.Context(), admin, id)
				if want := h.expected(id); err == nil && !slices.Contains(want, state) {
					err = fmt.Errorf("%v: state %q is in force, want one of %q", id, state, want)
				}
				if v := h.cluster[id]; err == nil && v != nil && state != "" && slices.Contains(v.options(), state) {
					v.good = []string{state}
				}
				return err
			})
		}
	}
}

// repair replaces all refused objects: which of their last versions are good only this config-watcher knows.
func (h *history) repair() {
	h.t.Helper()
	for id, v := range h.cluster {
		for v.broken {
			if v = h.draw(id); !v.broken {
				h.put(id, v)
			}
		}
	}
}

func inForce(ctx context.Context, admin configv1.ConfigStoreServiceClient, id objectID) (string, error) {
	got, err := admin.Get(ctx, &configv1.GetRequest{Key: keyOf(id), InForce: true})
	if status.Code(err) == codes.NotFound {
		return "", nil
	}
	_, state, _ := strings.Cut(string(got.GetObject().GetManifest()), `"state":"`)
	state, _, _ = strings.Cut(state, `"`)
	return state, err
}
