package whole

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/manifest"
)

// Names that decide on injection, beside those of package contract.
const (
	dataplaneLabel = "istio.io/dataplane-mode"
	injectorConfig = "istio-sidecar-injector"
	// defaultRevision is what Pods of a control plane without a revision have in their annotation istio.io/rev.
	defaultRevision = "default"
)

// injectorValues are the parts of the injector's values that the checks read.
type injectorValues struct {
	Webhook struct {
		Everywhere bool `json:"enableNamespacesByDefault"`
	} `json:"sidecarInjectorWebhook"`
	Global struct {
		Hub   string          `json:"hub"`
		Tag   json.RawMessage `json:"tag"`
		Proxy struct {
			Image string `json:"image"`
		} `json:"proxy"`
	} `json:"global"`
}

// injector reads the values of the injector; there is false if the mesh has none.
func (m *Mesh) injector() (v injectorValues, there bool) {
	o := m.get("", "ConfigMap", m.settings.GetRootNamespace(), injectorConfig)
	if o == nil {
		return v, false
	}
	c, ok := o.Body.(*corev1.ConfigMap)
	return v, ok && json.Unmarshal([]byte(c.Data["values"]), &v) == nil
}

// namespaceLabels are the labels of a namespace, with the one that every namespace of a cluster has.
func (m *Mesh) namespaceLabels(namespace string) labels.Set {
	out := labels.Set{"kubernetes.io/metadata.name": namespace}
	if o := m.namespaces[namespace]; o != nil {
		for k, v := range o.Labels {
			out[k] = v
		}
	}
	return out
}

// injected reports whether the workload's Pods get a sidecar when they are made. contract.InjectionLabel says where
// else that is decided.
func (m *Mesh) injected(w *workload) bool {
	if w.spec == nil || w.spec.HostNetwork || slices.Contains(contract.SystemNamespaces, w.Key.Namespace) {
		return false
	}
	switch {
	case w.labels[contract.InjectLabel] != "":
		return w.labels[contract.InjectLabel] == "true"
	case w.annotations[contract.InjectLabel] != "":
		return w.annotations[contract.InjectLabel] == "true" && m.injects(w.Key.Namespace)
	case w.labels[contract.RevisionLabel] != "" && m.namespaceLabels(w.Key.Namespace)[contract.InjectionLabel] == "":
		return true
	}
	return m.injects(w.Key.Namespace)
}

// injects reports whether a namespace asks for sidecars in its Pods.
func (m *Mesh) injects(namespace string) bool {
	set := m.namespaceLabels(namespace)
	switch {
	case set[contract.InjectionLabel] != "":
		return set[contract.InjectionLabel] == "enabled"
	case set[contract.RevisionLabel] != "":
		return true
	}
	values, _ := m.injector()
	return values.Webhook.Everywhere && namespace != m.settings.GetRootNamespace()
}

// checkInjectionLabels finds namespaces with two labels of which only one can decide.
func checkInjectionLabels(r *run) {
	for name, o := range r.namespaces {
		injection, one := o.Labels[contract.InjectionLabel]
		revision, two := o.Labels[contract.RevisionLabel]
		field := manifest.Field("metadata.labels", contract.RevisionLabel)
		switch {
		case one && two:
			r.report(o, finding.InjectionLabelsConflict, field, revision,
				fmt.Sprintf("namespace %s has the label %s=%s as well, which counts", name, contract.InjectionLabel, injection),
				"keep one of the two labels")
		case one && injection != "enabled" && injection != "disabled":
			r.report(o, finding.InjectionLabelsConflict, manifest.Field("metadata.labels", contract.InjectionLabel), injection,
				"is neither enabled nor disabled, so that nothing is injected",
				"write enabled or disabled")
		}
	}
}

// checkNamespaces finds namespaces that say nothing of injection.
func checkNamespaces(r *run) {
	values, _ := r.injector()
	for name, o := range r.namespaces {
		_, one := o.Labels[contract.InjectionLabel]
		_, two := o.Labels[contract.RevisionLabel]
		switch {
		case one || two || o.Labels[dataplaneLabel] != "" || name == r.settings.GetRootNamespace() ||
			slices.Contains(contract.SystemNamespaces, name):
		case values.Webhook.Everywhere:
			r.report(o, finding.InjectedByDefault, "metadata.labels", nil, "Pods get a sidecar, because enableNamespacesByDefault is set",
				fmt.Sprintf("label the namespace %s=enabled, or disabled, to say what is meant", contract.InjectionLabel))
		default:
			r.report(o, finding.NamespaceNotInjected, "metadata.labels", nil, "Pods get no sidecar",
				fmt.Sprintf("run `kubectl label namespace %s %s=enabled`, or %s=disabled if none is meant", name, contract.InjectionLabel,
					contract.InjectionLabel))
		}
	}
}

// checkPods finds Pods without a sidecar where one is asked for.
func checkPods(r *run) {
	for _, w := range r.workloads {
		if w.pod && w.proxy() == nil && r.injected(w) {
			r.report(w.Object, finding.PodWithoutSidecar, "spec.containers", nil,
				"the Pod has no container "+proxyName+", although a sidecar is asked for",
				"make the Pod again, for example with `kubectl rollout restart`: sidecars are injected when a Pod is made")
		}
	}
}

// checkUsers finds applications that run as the proxy's user: their traffic is not redirected to the proxy.
func checkUsers(r *run) {
	const user = 1337
	for _, w := range r.workloads {
		if w.spec == nil || w.proxy() == nil && !r.injected(w) {
			continue
		}
		of := func(c *corev1.Container) bool {
			switch {
			case c.SecurityContext != nil && c.SecurityContext.RunAsUser != nil:
				return *c.SecurityContext.RunAsUser == user
			default:
				return w.spec.SecurityContext != nil && w.spec.SecurityContext.RunAsUser != nil && *w.spec.SecurityContext.RunAsUser == user
			}
		}
		for i := range w.spec.Containers {
			c := &w.spec.Containers[i]
			if c.Name == proxyName || !of(c) {
				continue
			}
			field := w.path(fmt.Sprintf("spec.containers[%d].securityContext.runAsUser", i))
			if c.SecurityContext == nil || c.SecurityContext.RunAsUser == nil {
				field = w.path("spec.securityContext.runAsUser")
			}
			r.report(w.Object, finding.ReservedUser, field, user,
				fmt.Sprintf("container %s runs as the proxy's user: what it sends passes the proxy by",
					c.Name), "run it as another user")
		}
	}
}

// checkProxyImages finds sidecars of another version than their revision's injector writes, where its values are known:
// those of the revision without a name are. Others are compared with most of their revision in the namespace.
func checkProxyImages(r *run) {
	values, there := r.injector()
	written := "" // by the injector of the revision without a name
	if tag := strings.Trim(string(values.Global.Tag), `"`); there && values.Global.Hub != "" && tag != "" {
		image := values.Global.Proxy.Image
		if image == "" {
			image = "proxyv2"
		}
		written = values.Global.Hub + "/" + image + ":" + tag
		if strings.Contains(image, "/") {
			written = image
		}
	}
	type place struct{ namespace, revision string }
	together := map[place][]*workload{}
	for _, w := range r.workloads {
		if c := w.proxy(); c != nil && w.pod && c.Image != "auto" {
			at := place{w.Key.Namespace, cmp.Or(w.annotations[contract.RevisionLabel], w.labels[contract.RevisionLabel], defaultRevision)}
			together[at] = append(together[at], w)
		}
	}
	for at, list := range together {
		want := ""
		if at.revision == defaultRevision {
			want = written
		}
		usual := want
		if usual == "" {
			usual = mostImage(list)
		}
		for _, w := range list {
			if image := w.proxy().Image; image != usual && w.annotations["sidecar.istio.io/proxyImage"] != image && (want == "" || r.injected(w)) {
				reason := fmt.Sprintf("the other proxies of the namespace and revision are %s", usual)
				if want != "" {
					reason = fmt.Sprintf("the injector writes %s", usual)
				}
				r.report(w.Object, finding.ProxyVersionSkew, r.proxyField(w), image, reason, "make the Pod again, so that it gets the proxy of today")
			}
		}
	}
}

// mostImage is the proxy image that most workloads have.
func mostImage(list []*workload) string {
	count, most := map[string]int{}, ""
	for _, w := range list {
		image := w.proxy().Image
		if count[image]++; count[image] > count[most] || count[image] == count[most] && image > most {
			most = image
		}
	}
	return most
}

func (r *run) proxyField(w *workload) string {
	for i, c := range w.spec.Containers {
		if c.Name == proxyName {
			return w.path(fmt.Sprintf("spec.containers[%d].image", i))
		}
	}
	for i, c := range w.spec.InitContainers {
		if c.Name == proxyName {
			return w.path(fmt.Sprintf("spec.initContainers[%d].image", i))
		}
	}
	return w.path("spec")
}

// checkImageAuto finds containers whose image the injector should fill in, where no injector is called.
func checkImageAuto(r *run) {
	for _, w := range r.workloads {
		if c := w.proxy(); c == nil || c.Image != "auto" || r.webhookCalled(w) {
			continue
		}
		code := finding.ImageAutoOfTemplate
		if w.pod {
			code = finding.ImageAutoOfPod
		}
		r.report(w.Object, code, r.proxyField(w), "auto",
			"no injection webhook is called for the Pod, so that the image stays as it is and cannot be pulled",
			fmt.Sprintf("label the namespace %s=enabled, or the Pod %s=true", contract.InjectionLabel, contract.InjectLabel))
	}
}

// webhookCalled reports whether an injection webhook is called for the workload's Pods. Without any webhook among the
// objects the labels decide.
func (r *run) webhookCalled(w *workload) bool {
	found := false
	set := r.namespaceLabels(w.Key.Namespace)
	for _, o := range r.kind("MutatingWebhookConfiguration") {
		for _, hook := range o.Body.(*admissionv1.MutatingWebhookConfiguration).Webhooks {
			if !strings.HasSuffix(hook.Name, "sidecar-injector.istio.io") {
				continue
			}
			found = true
			if matches(hook.NamespaceSelector, set) && matches(hook.ObjectSelector, w.labels) {
				return true
			}
		}
	}
	return !found && r.injected(w)
}

func matches(selector *metav1.LabelSelector, set labels.Set) bool {
	if selector == nil {
		return true
	}
	s, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && s.Matches(set)
}
