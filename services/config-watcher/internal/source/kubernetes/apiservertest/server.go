// Package apiservertest is an API server in the process of a test, for histories too many for a real one: objects are
// listed in pages or streamed, watched with bookmarks, and lost in the ways in which a real server loses them. It
// checks no object and keeps no history that Expire was told to forget. tests/internal/kubeapi has the real one.
package apiservertest

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// Config of a Server.
type Config struct {
	// Kinds that it serves, each in one version. The name of a kind's resource is the kind's in lower case with an s.
	Kinds []schema.GroupVersionKind
	// PageSize bounds the objects of one answer to a list; 0 leaves it to the client.
	PageSize int
	// WatchList is true for a server that streams lists.
	WatchList bool
}

// Server is an API server. Its methods are safe for concurrent use.
type Server struct {
	cfg  Config
	http *httptest.Server

	mu sync.Mutex
	// version is that of the newest change; each change of an object, and each bookmark, has its own.
	version int
	objects map[schema.GroupResource]map[types.NamespacedName]*unstructured.Unstructured
	// log has the changes after version forgotten, the oldest first.
	log       []change
	forgotten int
	// held is true while no watch sends anything, away while no request is answered.
	held, away bool
	// changed is closed when a watch may have something to do.
	changed chan struct{}
}

// change is what a watch sends.
type change struct {
	version  int
	resource schema.GroupResource // empty for a bookmark, which is for all
	name     types.NamespacedName
	event    watch.EventType
	object   json.RawMessage
}

// New starts a server; Close ends it.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg, version: 1, forgotten: 1, objects: map[schema.GroupResource]map[types.NamespacedName]*unstructured.Unstructured{},
		changed: make(chan struct{})}
	s.http = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.http.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // connections that Cut ends
	s.http.EnableHTTP2 = true
	s.http.StartTLS()
	return s
}

// Client says how to reach the server.
func (s *Server) Client() *rest.Config {
	root := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.http.Certificate().Raw})
	return &rest.Config{Host: s.http.URL, TLSClientConfig: rest.TLSClientConfig{CAData: root, ServerName: "example.com"}, QPS: -1}
}

// Close ends all watches and the server.
func (s *Server) Close() {
	s.Cut()
	s.http.Close()
}

func resourceOf(kind schema.GroupKind) schema.GroupResource {
	return schema.GroupResource{Group: kind.Group, Resource: strings.ToLower(kind.Kind) + "s"}
}

// tell wakes the watches. It is called with mu held.
func (s *Server) tell() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Put creates or replaces an object. As a real server does, it gives the object a version, and a generation that counts
// changes of what is not metadata or status; uid and creation time are the caller's.
func (s *Server) Put(o *unstructured.Unstructured) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o = o.DeepCopy()
	resource, name := resourceOf(o.GroupVersionKind().GroupKind()), types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
	if s.objects[resource] == nil {
		s.objects[resource] = map[types.NamespacedName]*unstructured.Unstructured{}
	}
	event := watch.Added
	o.SetGeneration(1)
	if before := s.objects[resource][name]; before != nil {
		event = watch.Modified
		o.SetGeneration(before.GetGeneration() + 1)
	}
	s.objects[resource][name] = o
	s.record(resource, name, event, o)
}

// Delete removes an object, if it is there.
func (s *Server) Delete(kind schema.GroupKind, name types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delete(resourceOf(kind), name)
}

// DeleteNamespace removes the objects of a namespace, one after the other, and the namespace at last.
func (s *Server) DeleteNamespace(namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for resource, list := range s.objects {
		for name := range list {
			if name.Namespace == namespace {
				s.delete(resource, name)
			}
		}
	}
	s.delete(schema.GroupResource{Resource: "namespaces"}, types.NamespacedName{Name: namespace})
}

// delete is Delete. It is called with mu held.
func (s *Server) delete(resource schema.GroupResource, name types.NamespacedName) {
	if o := s.objects[resource][name]; o != nil {
		delete(s.objects[resource], name)
		s.record(resource, name, watch.Deleted, o.DeepCopy())
	}
}

// record appends a change. It is called with mu held.
func (s *Server) record(resource schema.GroupResource, name types.NamespacedName, event watch.EventType, o *unstructured.Unstructured) {
	s.version++
	o.SetResourceVersion(strconv.Itoa(s.version))
	js, err := o.MarshalJSON()
	if err != nil {
		panic(err)
	}
	s.log = append(s.log, change{version: s.version, resource: resource, name: name, event: event, object: js})
	s.tell()
}

// Bookmark tells all watches the newest version.
func (s *Server) Bookmark() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.log = append(s.log, change{version: s.version, event: watch.Bookmark})
	s.tell()
}

// Expire forgets the history: watches, and lists that are divided into pages, cannot go on from a version before this
// one (410 Gone).
func (s *Server) Expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.log, s.forgotten = nil, s.version
	s.tell()
}

// Hold makes watches send nothing, or go on.
func (s *Server) Hold(held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = held
	s.tell()
}

// Away makes the server answer no request, and end those under way, or come back.
func (s *Server) Away(away bool) {
	s.mu.Lock()
	s.away = away
	s.mu.Unlock()
	if away {
		s.Cut()
	}
}

// Cut ends all connections.
func (s *Server) Cut() { s.http.CloseClientConnections() }

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	away := s.away
	s.mu.Unlock()
	if away {
		panic(http.ErrAbortHandler)
	}
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case r.URL.Path == "/readyz":
		w.WriteHeader(http.StatusOK)
		return
	case r.Method != http.MethodGet:
		refuse(w, statusOf(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, r.Method))
		return
	case len(path) == 1 && path[0] == "api":
		answer(w, metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}})
		return
	case len(path) == 1 && path[0] == "apis":
		s.groups(w)
		return
	}
	var gv schema.GroupVersion
	switch {
	case path[0] == "api" && len(path) >= 2:
		gv, path = schema.GroupVersion{Version: path[1]}, path[2:]
	case path[0] == "apis" && len(path) >= 3:
		gv, path = schema.GroupVersion{Group: path[1], Version: path[2]}, path[3:]
	}
	namespace := ""
	if len(path) == 3 && path[0] == "namespaces" {
		namespace, path = path[1], path[2:]
	}
	if len(path) == 0 && gv.Version != "" {
		s.resources(w, gv)
		return
	}
	i := slices.IndexFunc(s.cfg.Kinds, func(k schema.GroupVersionKind) bool {
		return len(path) == 1 && k.GroupVersion() == gv && resourceOf(k.GroupKind()).Resource == path[0]
	})
	if i < 0 {
		refuse(w, statusOf(http.StatusNotFound, metav1.StatusReasonNotFound, r.URL.Path))
		return
	}
	q := query{kind: s.cfg.Kinds[i], resource: resourceOf(s.cfg.Kinds[i].GroupKind()), namespace: namespace, url: r.URL.Query()}
	if q.url.Get("watch") == "true" {
		s.watch(w, r, q)
	} else {
		s.list(w, q)
	}
}

func answer(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(body)
}

func statusOf(code int, reason metav1.StatusReason, message string) *metav1.Status {
	return &metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason,
		Message: message,
	}
}

func refuse(w http.ResponseWriter, with *metav1.Status) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(with.Code))
	_ = json.NewEncoder(w).Encode(with)
}

func (s *Server) groups(w http.ResponseWriter) {
	versions := map[string][]metav1.GroupVersionForDiscovery{}
	for _, k := range s.cfg.Kinds {
		v := metav1.GroupVersionForDiscovery{GroupVersion: k.GroupVersion().String(), Version: k.Version}
		if k.Group != "" && !slices.Contains(versions[k.Group], v) {
			versions[k.Group] = append(versions[k.Group], v)
		}
	}
	out := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIGroupList"}}
	for _, group := range slices.Sorted(maps.Keys(versions)) {
		out.Groups = append(out.Groups, metav1.APIGroup{Name: group, Versions: versions[group], PreferredVersion: versions[group][0]})
	}
	answer(w, out)
}

func (s *Server) resources(w http.ResponseWriter, gv schema.GroupVersion) {
	out := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: gv.String()}
	for _, k := range s.cfg.Kinds {
		if k.GroupVersion() == gv {
			name := resourceOf(k.GroupKind()).Resource
			out.APIResources = append(out.APIResources, metav1.APIResource{Name: name, Kind: k.Kind, Verbs: metav1.Verbs{"list", "watch"}})
		}
	}
	answer(w, out)
}

// gone is the answer about a version that Expire has forgotten.
func gone(version int) *metav1.Status {
	return statusOf(http.StatusGone, metav1.StatusReasonExpired, fmt.Sprintf("too old resource version: %d", version))
}

// timeLimit of a watch is its client's, or this.
const timeLimit = time.Minute
