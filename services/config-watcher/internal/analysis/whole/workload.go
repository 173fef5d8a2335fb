package whole

import (
	"maps"
	"slices"
	"strings"

	"istio.io/api/annotation"
	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// workload is a Pod, what makes Pods, or a WorkloadEntry.
type workload struct {
	*Object
	labels, annotations map[string]string
	// spec is nil for a WorkloadEntry.
	spec *corev1.PodSpec
	// status is a Pod's; nil for others.
	status *corev1.PodStatus
	// refused says why the API server makes no Pods of a template; empty if it does.
	refused string
	// pod is true for a Pod, which shows what injection has done; a template does not.
	pod bool
}

// workloadOf returns the workload that an object is; nil if it is none, or has ended.
func workloadOf(o *Object) *workload {
	switch b := o.Body.(type) {
	case *corev1.Pod:
		if b.Status.Phase == corev1.PodSucceeded || b.Status.Phase == corev1.PodFailed || b.DeletionTimestamp != nil {
			return nil
		}
		return &workload{Object: o, labels: o.Labels, annotations: o.Annotations, spec: &b.Spec, status: &b.Status, pod: true}
	case *template:
		return &workload{Object: o, labels: b.Labels, annotations: b.Annotations, spec: &b.Spec, refused: b.refused}
	case *networking.WorkloadEntry:
		labels, _ := normalise.WorkloadLabels(o.Valid)
		return &workload{Object: o, labels: labels, annotations: o.Annotations}
	}
	return nil
}

// proxyName is the name of the sidecar's container.
const proxyName = "istio-proxy"

// proxy returns the container of the workload's sidecar or gateway, also a native sidecar; nil if it has none.
func (w *workload) proxy() *corev1.Container {
	if w.spec == nil {
		return nil
	}
	for _, list := range [][]corev1.Container{w.spec.Containers, w.spec.InitContainers} {
		for i := range list {
			if list[i].Name == proxyName {
				return &list[i]
			}
		}
	}
	return nil
}

// path is the JSON path of the workload's Pod metadata or spec.
func (w *workload) path(rest string) string {
	switch {
	case w.pod:
		return rest
	case w.Key.Kind == "CronJob":
		return "spec.jobTemplate.spec.template." + rest
	default:
		return "spec.template." + rest
	}
}

// proxyless reports whether the workload has a template of injection for gRPC that speaks xDS itself.
func (w *workload) proxyless() bool {
	for name := range strings.SplitSeq(w.annotations[annotation.InjectTemplates.Name], ",") {
		if name = strings.TrimSpace(name); name == "grpc-agent" || name == "grpc-simple" {
			return true
		}
	}
	return false
}

// inMesh reports whether the workload has a proxy, or would get one.
func (m *Mesh) inMesh(w *workload) bool {
	if w.spec == nil || w.proxy() != nil {
		return true
	}
	return !w.pod && m.injected(w)
}

// label is one label of workloads of a namespace; the namespace "" is that of all workloads.
type label struct{ namespace, key, value string }

// labelIndex finds what has a label.
type labelIndex[T any] map[label][]T

// add adds an item under all of its labels.
func (x labelIndex[T]) add(namespace string, labels map[string]string, item T) {
	for k, v := range labels {
		x[label{namespace, k, v}] = append(x[label{namespace, k, v}], item)
		x[label{"", k, v}] = append(x[label{"", k, v}], item)
	}
}

// addOnce adds an item under one of the labels of its selector.
func (x labelIndex[T]) addOnce(namespace string, selector map[string]string, item T) {
	for _, k := range slices.Sorted(maps.Keys(selector)) {
		x[label{namespace, k, selector[k]}] = append(x[label{namespace, k, selector[k]}], item)
		return
	}
}

// selected lists the workloads of a namespace that a selector selects, those of all namespaces if it is "". An empty
// selector selects all.
func (m *Mesh) selected(namespace string, selector map[string]string) []*workload {
	if len(selector) == 0 {
		if namespace == "" {
			return m.workloads
		}
		return m.byLabel[label{namespace, "", ""}]
	}
	var shortest []*workload
	first := true
	for k, v := range selector {
		if list := m.byLabel[label{namespace, k, v}]; first || len(list) < len(shortest) {
			shortest, first = list, false
		}
	}
	var out []*workload
	for _, w := range shortest {
		if object.HasLabels(w.labels, selector) {
			out = append(out, w)
		}
	}
	return out
}

// reach is the namespace in which an object's selector selects: all if the object is in the root namespace.
func (m *Mesh) reach(o *Object) string {
	if o.Key.Namespace == m.settings.GetRootNamespace() {
		return ""
	}
	return o.Key.Namespace
}

// servicesOf lists the Services that select a workload, sorted by key.
func (m *Mesh) servicesOf(w *workload) []*Object {
	var out []*Object
	for k, v := range w.labels {
		for _, s := range m.services[label{w.Key.Namespace, k, v}] {
			if object.HasLabels(w.labels, s.Body.(*corev1.Service).Spec.Selector) {
				out = append(out, s)
			}
		}
	}
	slices.SortFunc(out, func(a, b *Object) int { return a.Key.Compare(b.Key) })
	return slices.Compact(out)
}

// index makes what the checks look things up in.
func (m *Mesh) index() {
	m.workloads = nil
	m.byKind, m.byLabel, m.services, m.namespaces = map[string][]*Object{}, labelIndex[*workload]{}, labelIndex[*Object]{},
		map[string]*Object{}
	all := slices.SortedFunc(maps.Values(m.objects), func(a, b *Object) int { return a.Key.Compare(b.Key) })
	for _, o := range all {
		switch name := o.Key.Kind; {
		case o.Key.Kind == "Namespace" && o.Key.Group == "":
			m.namespaces[o.Key.Name] = o
			m.byKind[name] = append(m.byKind[name], o)
		case o.Key.Group == groupGateway:
			m.byKind[groupGateway+"/"+name] = append(m.byKind[groupGateway+"/"+name], o)
		case o.Body != nil || o.Valid != nil:
			m.byKind[name] = append(m.byKind[name], o)
		}
		if w := workloadOf(o); w != nil {
			m.workloads = append(m.workloads, w)
			m.byLabel.add(o.Key.Namespace, w.labels, w)
			m.byLabel[label{o.Key.Namespace, "", ""}] = append(m.byLabel[label{o.Key.Namespace, "", ""}], w)
		}
		if s, ok := o.Body.(*corev1.Service); ok {
			m.services.addOnce(o.Key.Namespace, s.Spec.Selector, o)
		}
	}
}

// meshConfigOf returns the object of the mesh configuration; nil if there is none.
func (m *Mesh) meshConfigOf() *Object {
	return m.get("", "ConfigMap", kinds.MeshNamespace, kinds.MeshName)
}

// maxNamed bounds the names in a message.
const maxNamed = 5

// sentence joins names of objects in a message: at most maxNamed.
func sentence(names []string) string {
	if more := len(names) - maxNamed; more > 0 {
		return strings.Join(names[:maxNamed], ", ") + " and more"
	}
	return strings.Join(names, ", ")
}
