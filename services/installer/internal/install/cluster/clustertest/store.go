package clustertest

import (
	"errors"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/managedfields/managedfieldstest"

	"fairlead.dev/services/installer/internal/install/cluster"
)

// do answers a request for objects of a kind.
func (s *Server) do(r *http.Request, id cluster.ID) (any, *metav1.Status) {
	live := s.objects[id]
	if r.Method == http.MethodGet && id.Name == "" {
		return s.list(r, id)
	}
	if live == nil && id.Name != "" && r.Header.Get("Content-Type") != string(types.ApplyPatchType) {
		return nil, failure(http.StatusNotFound, metav1.StatusReasonNotFound, "%s not found", id)
	}
	if r.Method == http.MethodGet {
		return live, nil
	}
	want := &unstructured.Unstructured{}
	text, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(text, &want.Object)
	}
	if err != nil && r.Method != http.MethodDelete {
		return nil, failure(http.StatusBadRequest, metav1.StatusReasonBadRequest, "%v", err)
	}
	if want.GetKind() == "SelfSubjectAccessReview" {
		get := func(field string) string {
			text, _, _ := unstructured.NestedString(want.Object, "spec", "resourceAttributes", field)
			return text
		}
		want.Object["status"] = map[string]any{"allowed": s.Denied == nil || !s.Denied(get("verb"), get("resource"))}
		return want, nil
	}
	if s.Refuse != nil {
		if status := s.Refuse(r, live, want); status != nil {
			return nil, status
		}
	}
	if r.Method == http.MethodDelete {
		delete(s.objects, id)
		s.note("delete", id)
		return metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess}, nil
	}
	return s.write(r, id, live, want)
}

func (s *Server) note(what string, id cluster.ID) {
	if !strings.HasPrefix(id.Name, "fairlead-installation-") {
		s.writes = append(s.writes, what+" "+id.String())
	}
}

func (s *Server) list(r *http.Request, id cluster.ID) (any, *metav1.Status) {
	selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		return nil, failure(http.StatusBadRequest, metav1.StatusReasonBadRequest, "%v", err)
	}
	items := []*unstructured.Unstructured{}
	for key, u := range s.objects {
		if key.Kind == id.Kind && key.Group == id.Group && (id.Namespace == "" || key.Namespace == id.Namespace) &&
			selector.Matches(labels.Set(u.GetLabels())) {
			items = append(items, u)
		}
	}
	slices.SortFunc(items, func(a, b *unstructured.Unstructured) int {
		return strings.Compare(a.GetNamespace()+"/"+a.GetName(), b.GetNamespace()+"/"+b.GetName())
	})
	version := id.Version
	if id.Group != "" {
		version = id.Group + "/" + id.Version
	}
	return map[string]any{"kind": id.Kind + "List", "apiVersion": version, "metadata": map[string]any{}, "items": items}, nil
}

// write makes or changes an object.
func (s *Server) write(r *http.Request, id cluster.ID, live, want *unstructured.Unstructured) (any, *metav1.Status) {
	query := r.URL.Query()
	var after *unstructured.Unstructured
	var status *metav1.Status
	switch kind := r.Header.Get("Content-Type"); {
	case r.Method == http.MethodPatch && kind == string(types.ApplyPatchType):
		after, status = managed(id, live, want, func(m *managedfields.FieldManager, from *unstructured.Unstructured) (any, error) {
			return m.Apply(from, want, query.Get("fieldManager"), query.Get("force") == "true")
		})
	case r.Method == http.MethodPatch:
		merged := live.DeepCopy()
		merge(merged.Object, want.Object)
		after, status = updated(merged, live, query.Get("fieldManager"))
	default:
		after, status = updated(want, live, query.Get("fieldManager"))
	}
	if status != nil {
		return nil, status
	}
	if want.GetName() == "" && id.Name == "" || want.GetNamespace() != id.Namespace {
		return nil, failure(http.StatusBadRequest, metav1.StatusReasonBadRequest, "%s is sent to %s", cluster.Of(want), id)
	}
	if s.Stored != nil {
		s.Stored(after)
	}
	if query.Get("dryRun") != "" {
		return after, nil
	}
	s.store(after)
	word := map[string]string{http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "apply"}[r.Method]
	s.note(word, cluster.Of(after))
	return after, nil
}

func (s *Server) update(u *unstructured.Unstructured, manager string) *metav1.Status {
	after, status := updated(u, s.objects[cluster.Of(u)], manager)
	if status == nil {
		if s.Stored != nil {
			s.Stored(after)
		}
		s.store(after)
	}
	return status
}

func updated(u, live *unstructured.Unstructured, manager string) (*unstructured.Unstructured, *metav1.Status) {
	return managed(cluster.Of(u), live, u, func(m *managedfields.FieldManager, from *unstructured.Unstructured) (any, error) {
		return m.Update(from, u.DeepCopy(), manager)
	})
}

// managed changes an object by its field managers.
func managed(id cluster.ID, live, want *unstructured.Unstructured,
	change func(*managedfields.FieldManager, *unstructured.Unstructured) (any, error)) (*unstructured.Unstructured, *metav1.Status) {
	from := &unstructured.Unstructured{Object: map[string]any{}}
	if live != nil {
		from = live.DeepCopy()
	}
	from.SetGroupVersionKind(want.GroupVersionKind())
	result, err := change(managedfieldstest.NewFakeFieldManager(managedfields.NewDeducedTypeConverter(), want.GroupVersionKind()), from)
	status := apierrors.APIStatus(nil)
	switch {
	case errors.As(err, &status):
		s := status.Status()
		return nil, &s
	case err != nil:
		return nil, failure(http.StatusInternalServerError, metav1.StatusReasonInternalError, "%v", err)
	}
	after, _ := result.(*unstructured.Unstructured)
	after.SetName(id.Name)
	if id.Name == "" {
		after.SetName(want.GetName())
	}
	if after.GetKind() == "Deployment" {
		if _, found, _ := unstructured.NestedInt64(after.Object, "spec", "replicas"); !found {
			_ = unstructured.SetNestedField(after.Object, int64(1), "spec", "replicas") // spec is a mapping
		}
	}
	if live == nil {
		after.SetUID(types.UID(id.String()))
	} else if after.SetGeneration(live.GetGeneration()); !reflect.DeepEqual(live.Object["spec"], after.Object["spec"]) {
		after.SetGeneration(live.GetGeneration() + 1)
	}
	return after, nil
}

func (s *Server) store(u *unstructured.Unstructured) {
	s.version++
	u.SetResourceVersion(strconv.Itoa(s.version))
	s.objects[cluster.Of(u)] = u
}

// merge lays a merge patch on an object.
func merge(into, patch map[string]any) {
	for key, value := range patch {
		below, ok := value.(map[string]any)
		if value == nil {
			delete(into, key)
			continue
		}
		old, is := into[key].(map[string]any)
		if !ok {
			into[key] = value
			continue
		}
		if !is {
			old = map[string]any{}
			into[key] = old
		}
		merge(old, below)
	}
}
