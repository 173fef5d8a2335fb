package apiservertest

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// query is a list or watch.
type query struct {
	kind      schema.GroupVersionKind
	resource  schema.GroupResource
	namespace string
	url       url.Values
}

// wants reports whether an object belongs to the answer.
func (q query) wants(name types.NamespacedName) bool {
	named, one := strings.CutPrefix(q.url.Get("fieldSelector"), metav1.ObjectNameField+"=")
	return (q.namespace == "" || q.namespace == name.Namespace) && (!one || named == name.Name)
}

// selected lists the objects of a query, sorted. It is called with mu held.
func (s *Server) selected(q query) (out []*unstructured.Unstructured) {
	for name, o := range s.objects[q.resource] {
		if q.wants(name) {
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b *unstructured.Unstructured) int {
		return strings.Compare(a.GetNamespace()+"/"+a.GetName(), b.GetNamespace()+"/"+b.GetName())
	})
	return out
}

// list answers with a page. A later page has the objects of now, not those of the version of the first page: clients
// may see that too, of a server that serves inconsistent continuations. The version stays the first page's, so that a
// watch sends what has changed between the pages.
func (s *Server) list(w http.ResponseWriter, q query) {
	s.mu.Lock()
	version, after := s.version, ""
	if token := q.url.Get("continue"); token != "" {
		v, name, _ := strings.Cut(token, " ")
		version, _ = strconv.Atoi(v)
		after = name
	}
	if version < s.forgotten {
		s.mu.Unlock()
		refuse(w, gone(version))
		return
	}
	size, _ := strconv.Atoi(q.url.Get("limit")) // without one a client relies on getting everything
	if size > 0 && s.cfg.PageSize > 0 {
		size = min(size, s.cfg.PageSize)
	}
	items, next := []json.RawMessage{}, ""
	for _, o := range s.selected(q) {
		name := o.GetNamespace() + "/" + o.GetName()
		if name <= after {
			continue
		}
		if size > 0 && len(items) == size {
			next = strconv.Itoa(version) + " " + after
			break
		}
		js, err := o.MarshalJSON()
		if err != nil {
			panic(err)
		}
		items, after = append(items, js), name
	}
	s.mu.Unlock()
	answer(w, map[string]any{
		"apiVersion": q.kind.GroupVersion().String(), "kind": q.kind.Kind + "List", "items": items,
		"metadata": metav1.ListMeta{ResourceVersion: strconv.Itoa(version), Continue: next},
	})
}

// watch sends what changes after a version. A stream of a list begins with all objects.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, q query) {
	stream := q.url.Get("sendInitialEvents") == "true"
	if stream && !s.cfg.WatchList {
		refuse(w, statusOf(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid,
			"sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"))
		return
	}
	limit := timeLimit
	if seconds, _ := strconv.Atoi(q.url.Get("timeoutSeconds")); seconds > 0 {
		limit = time.Duration(seconds) * time.Second
	}
	ended := time.After(limit)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	flush := w.(http.Flusher).Flush
	flush()
	send := func(event watch.EventType, object any) {
		_ = json.NewEncoder(w).Encode(map[string]any{"type": event, "object": object})
	}
	at, _ := strconv.Atoi(q.url.Get("resourceVersion"))
	if stream {
		s.mu.Lock()
		at = s.version
		all := s.selected(q) // nobody changes an object
		s.mu.Unlock()
		for _, o := range all {
			send(watch.Added, o.Object)
		}
		send(watch.Bookmark, q.bookmark(at, map[string]any{metav1.InitialEventsAnnotationKey: "true"}))
	}
	for {
		s.mu.Lock()
		var due []change
		expired := at < s.forgotten
		if !s.held {
			for _, c := range s.log {
				if c.version > at {
					due = append(due, c)
				}
			}
		}
		changed, held := s.changed, s.held
		s.mu.Unlock()
		if expired && !held {
			send(watch.Error, gone(at))
			return
		}
		for _, c := range due {
			switch at = c.version; {
			case c.event == watch.Bookmark:
				send(watch.Bookmark, q.bookmark(at, nil))
			case c.resource == q.resource && q.wants(c.name):
				send(c.event, c.object)
			}
		}
		flush()
		select {
		case <-changed:
		case <-ended:
			return
		case <-r.Context().Done():
			return
		}
	}
}

func (q query) bookmark(version int, annotations map[string]any) map[string]any {
	meta := map[string]any{"resourceVersion": strconv.Itoa(version)}
	if annotations != nil {
		meta["annotations"] = annotations
	}
	return map[string]any{"apiVersion": q.kind.GroupVersion().String(), "kind": q.kind.Kind, "metadata": meta}
}
