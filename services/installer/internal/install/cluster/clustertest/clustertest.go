// Package clustertest is an API server in the process, for tests of the engine: it keeps objects of the kinds that
// installations have, and applies them with real field managers. It knows no schemas, no controllers and no admission;
// a test adds what it needs of these by Server.Refuse and Server.Stored.
package clustertest

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"fairlead.dev/services/installer/internal/install/cluster"
)

// Kind is one that the server serves.
type Kind struct {
	GroupVersion, Kind, Plural string
	Cluster                    bool
}

// Kinds are those that every server serves.
var Kinds = []Kind{
	{"v1", "Namespace", "namespaces", true}, {"v1", "Secret", "secrets", false}, {"v1", "ConfigMap", "configmaps", false},
	{"v1", "Service", "services", false},
	{"v1", "ServiceAccount", "serviceaccounts", false}, {"v1", "Pod", "pods", false}, {"v1", "Event", "events", false},
	{"apps/v1", "Deployment", "deployments", false},
	{"apps/v1", "ReplicaSet", "replicasets", false}, {"autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", false},
	{"coordination.k8s.io/v1", "Lease", "leases", false}, {"example.com/v1", "Thing", "things", false},
	{"apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", true},
	{"admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", true},
	{"admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", true},
	{"authorization.k8s.io/v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", true},
}

// Server is the API server.
type Server struct {
	*httptest.Server
	// Denied says which rights the user has not; nil denies none. It is asked by reviews alone.
	Denied func(verb, resource string) bool
	// Refuse may refuse a request to change an object; live is nil for one that is not there. It runs for dry runs as
	// well.
	Refuse func(r *http.Request, live, want *unstructured.Unstructured) *metav1.Status
	// Stored is called with what is about to be stored, and may change it, as defaults and controllers do.
	Stored func(u *unstructured.Unstructured)

	mu      sync.Mutex
	objects map[cluster.ID]*unstructured.Unstructured
	writes  []string
	version int
}

// Start starts a server with objects of a YAML stream, which the manager "kubectl" has made.
func Start(t *testing.T, documents string) *Server {
	t.Helper()
	s := &Server{objects: map[cluster.ID]*unstructured.Unstructured{}}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	s.Add(t, documents)
	return s
}

// Client connects to the server.
func (s *Server) Client(t *testing.T) *cluster.Client {
	t.Helper()
	c, err := cluster.Connect(&rest.Config{Host: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Add makes objects of a YAML stream, as the manager "kubectl".
func (s *Server) Add(t *testing.T, documents string) {
	t.Helper()
	for text := range strings.SplitSeq(documents, "\n---\n") {
		if u := Object(t, text); len(u.Object) > 0 {
			s.Update(t, u, "kubectl")
		}
	}
}

// Object reads an object.
func Object(t *testing.T, document string) *unstructured.Unstructured {
	t.Helper()
	text, err := yaml.YAMLToJSON([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{}
	if strings.TrimSpace(string(text)) == "null" {
		return u
	}
	if err := u.UnmarshalJSON(text); err != nil {
		t.Fatalf("%v: %s", err, document)
	}
	return u
}

// Update makes or changes an object as a manager.
func (s *Server) Update(t *testing.T, u *unstructured.Unstructured, manager string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if status := s.update(u, manager); status != nil {
		t.Fatalf("%s: %s", cluster.Of(u), status.Message)
	}
}

// Scale sets the replicas of a Deployment as a HorizontalPodAutoscaler does.
func (s *Server) Scale(t *testing.T, namespace, name string, replicas int64) {
	t.Helper()
	u := s.Get("Deployment", namespace, name)
	if err := unstructured.SetNestedField(u.Object, replicas, "spec", "replicas"); err != nil {
		t.Fatal(err)
	}
	const manager = "kube-controller-manager"
	s.Update(t, u, manager)
	s.mu.Lock()
	defer s.mu.Unlock()
	u = s.objects[cluster.Of(u)]
	entries := u.GetManagedFields()
	for i := range entries {
		if entries[i].Manager == manager {
			entries[i].Subresource = "scale"
		}
	}
	u.SetManagedFields(entries)
}

// Get returns an object; nil if it is not there.
func (s *Server) Get(kind, namespace, name string) *unstructured.Unstructured {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, u := range s.objects {
		if id.Kind == kind && id.Namespace == namespace && id.Name == name {
			return u.DeepCopy()
		}
	}
	return nil
}

// Writes are the requests that have changed something, "apply Deployment mesh/server", inventories left out.
func (s *Server) Writes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.writes)
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer, status := s.answer(r)
	w.Header().Set("Content-Type", "application/json")
	if status != nil {
		if status.Code == 0 {
			w.Header().Set("Content-Type", "text/plain")
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, status.Message)
			return
		}
		status.Kind, status.APIVersion, status.Status = "Status", "v1", metav1.StatusFailure
		w.WriteHeader(int(status.Code))
		answer = status
	}
	_ = json.NewEncoder(w).Encode(answer) // who asked has gone
}

// notServed is the answer to a path that no kind has.
func notServed() *metav1.Status { return &metav1.Status{Message: "404 page not found\n"} }

func failure(code int32, reason metav1.StatusReason, format string, a ...any) *metav1.Status {
	return &metav1.Status{Code: code, Reason: reason, Message: fmt.Sprintf(format, a...)}
}

func (s *Server) answer(r *http.Request) (any, *metav1.Status) {
	if r.URL.Path == "/version" {
		return map[string]any{"gitVersion": "v1.36.0"}, nil
	}
	if answer, ok := discovery(r.URL.Path); ok {
		return answer, nil
	}
	for _, k := range Kinds {
		base := "/apis/" + k.GroupVersion
		if k.GroupVersion == "v1" {
			base = "/api/v1"
		}
		rest, ok := strings.CutPrefix(r.URL.Path, base+"/")
		if !ok {
			continue
		}
		id := cluster.ID{Version: "v1", Kind: k.Kind}
		if group, version, ok := strings.Cut(k.GroupVersion, "/"); ok {
			id.Group, id.Version = group, version
		}
		parts := strings.Split(rest, "/")
		if !k.Cluster && len(parts) > 2 && parts[0] == "namespaces" {
			id.Namespace, parts = parts[1], parts[2:]
		}
		if parts[0] != k.Plural || len(parts) > 2 {
			continue
		}
		if len(parts) == 2 {
			id.Name = parts[1]
		}
		return s.do(r, id)
	}
	return nil, notServed()
}

// discovery answers which kinds there are.
func discovery(path string) (any, bool) {
	groups := map[string]string{}
	resources := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}}
	for _, k := range Kinds {
		if group, version, ok := strings.Cut(k.GroupVersion, "/"); ok {
			groups[group] = version
		}
		if path == "/apis/"+k.GroupVersion || path == "/api/v1" && k.GroupVersion == "v1" {
			resources.GroupVersion = k.GroupVersion
			resources.APIResources = append(resources.APIResources,
				metav1.APIResource{Name: k.Plural, Kind: k.Kind, Namespaced: !k.Cluster, Verbs: []string{"get", "list", "delete"}})
		}
	}
	switch path {
	case "/api":
		return metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}, true
	case "/apis":
		list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
		for _, group := range slices.Sorted(maps.Keys(groups)) {
			version := metav1.GroupVersionForDiscovery{GroupVersion: group + "/" + groups[group], Version: groups[group]}
			list.Groups = append(list.Groups, metav1.APIGroup{Name: group, Versions: []metav1.GroupVersionForDiscovery{version},
				PreferredVersion: version})
		}
		return list, true
	}
	return resources, len(resources.APIResources) > 0
}
