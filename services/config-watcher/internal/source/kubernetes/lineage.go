package kubernetes

import (
	"context"
	"errors"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// An etcd that was emptied or restored from a backup begins again at an earlier resource version. To a watch that goes
// on from a later one the API server says nothing, and nobody would notice until the version is reached again. So
// checking compares what the API server says of itself with what was seen of it before.

// kubeSystem is the namespace that every cluster has from its first moment to its last. Its UID names the cluster.
const kubeSystem = "kube-system"

// checkDataEvery is how often the API server is asked whether it has the data of before. It is asked at once when it
// was away.
const checkDataEvery = 30 * time.Second

// checkDataSoon is how soon it is asked again that has not answered, such as one that is just starting.
const checkDataSoon = 5 * time.Second

// lineage tells of a list of Namespaces whether it is surely not a later one of the same data as the one before
// (other), or surely is (same): it has the kube-system of before, and its version is not lower, as after a restored
// backup. Neither is sure of the first list. It is called with Source.mu held.
func (k *kind) lineage(list map[types.NamespacedName]*entry, version string) (other, same bool) {
	if k.system == "" {
		return false, false
	}
	if now := list[types.NamespacedName{Name: kubeSystem}]; now == nil || now.object == nil || k.system != now.object.UID {
		return true, false
	}
	from, err := strconv.ParseUint(k.newest, 10, 64)
	to, err2 := strconv.ParseUint(version, 10, 64)
	if err != nil || err2 != nil {
		return false, false
	}
	return to < from, to >= from
}

// sawSystem takes over a Namespace, which may be kube-system. It is called with Source.mu held.
func (k *kind) sawSystem(e *entry) {
	if k.namespaces() && e.name.Name == kubeSystem && e.object != nil {
		k.system = e.object.UID
	}
}

// saw takes over a resource version of the Namespaces. Those of other kinds may be of another etcd, and say nothing
// about these. It is called with Source.mu held.
func (k *kind) saw(s *Source, version string) {
	if v, err := strconv.ParseUint(version, 10, 64); err == nil && k.namespaces() {
		s.newest = max(s.newest, v)
	}
}

// checking lists all kinds again when the API server has other data than before.
func (s *Source) checking(ctx context.Context) error {
	wait := checkDataEvery
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.back:
		case <-s.cfg.Clock.After(wait):
		}
		_ = s.gate.wait(ctx) // whose end the next round takes over
		if wait = checkDataEvery; !s.checkData(ctx) {
			wait = checkDataSoon
		}
	}
}

// checkData asks once, and reports whether there was an answer.
func (s *Source) checkData(ctx context.Context) bool {
	namespaces := s.kinds[schema.GroupKind{Kind: "Namespace"}]
	s.mu.Lock()
	newest, system := s.newest, namespaces.system
	s.mu.Unlock()
	within, cancel := context.WithTimeout(ctx, discoverWithin)
	defer cancel()
	list, err := s.api.Load().metadata.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).List(within,
		metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, kubeSystem).String()})
	if err != nil {
		var answer apierrors.APIStatus
		if ctx.Err() == nil && !errors.As(err, &answer) {
			s.gate.failed(err)
		}
		return false
	}
	version, err := strconv.ParseUint(list.GetResourceVersion(), 10, 64)
	older := err == nil && version < newest
	other := system != "" && (len(list.Items) == 0 || string(list.Items[0].UID) != system)
	if !older && !other {
		s.mu.Lock()
		defer s.mu.Unlock()
		namespaces.saw(s, list.GetResourceVersion())
		return true
	}
	s.cfg.Log.Warn("API server has other data than before, as after the restoration of a backup: everything is listed again", "source", s.name,
		"seen_up_to", newest, "now_at", version, "other_cluster", other)
	if s.cfg.OtherData != nil {
		s.cfg.OtherData()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.newest = version
	for _, k := range s.kinds {
		for _, w := range k.watchers {
			w.relist()
		}
	}
	return true
}
