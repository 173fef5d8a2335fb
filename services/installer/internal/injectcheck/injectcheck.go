// Package injectcheck says whether the API server of a cluster asks an injector about a Pod, and by which labels. It is
// what `fairlead check-inject` does; `fairlead describe` says by it why a Pod has no proxy.
package injectcheck

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"fairlead.dev/pkg/nearest"
	"fairlead.dev/pkg/process"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/installer/internal/kube"
	"fairlead.dev/services/installer/internal/objectfile"
)

// Labels that ask for a sidecar, or refuse one: of a Pod, and of a namespace.
const ()

// Verdict says whether a configuration of webhooks is asked about a Pod, and why.
type Verdict struct {
	Webhook  string `json:"webhook"`
	Revision string `json:"revision"`
	Injected bool   `json:"injected"`
	Reason   string `json:"reason"`
}

// Subject are Pods: those of a name, or with labels.
type Subject struct {
	Namespace string
	// Name is POD[.NAMESPACE] or KIND/NAME; Labels, KEY=VALUE divided by commas, are in place of it.
	Name, Labels string
}

// Check has a verdict for each configuration of an injector's webhooks.
func Check(ctx context.Context, api kube.API, s Subject) ([]Verdict, error) {
	namespace, pod, err := s.labels(ctx, api)
	if err != nil {
		return nil, err
	}
	ns, err := api.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, noSuch(ctx, api, "namespace", "", namespace)
	}
	if err != nil {
		return nil, kube.Explain(err)
	}
	hooks, err := api.AdmissionregistrationV1().MutatingWebhookConfigurations().List(ctx, metav1.ListOptions{Limit: kube.Page})
	if err != nil {
		return nil, kube.Explain(err)
	}
	list := []Verdict{}
	for i := range hooks.Items {
		if h := &hooks.Items[i]; injects(h) {
			list = append(list, check(h, ns, pod))
		}
	}
	return list, nil
}

// labels returns the namespace and the labels of the Pods.
func (s Subject) labels(ctx context.Context, api kube.API) (namespace string, pod labels.Set, err error) {
	namespace = s.Namespace
	if s.Labels != "" {
		pod, err = labels.ConvertSelectorToLabelsMap(s.Labels)
		if err != nil {
			err = process.Usagef("-l %s: %w", s.Labels, err)
		}
		return cmp.Or(namespace, objectfile.DefaultNamespace), pod, err
	}
	kind, short, ofKind := strings.Cut(s.Name, "/")
	if !ofKind {
		kind, short = "pod", s.Name
	}
	if i := strings.LastIndexByte(short, '.'); namespace == "" && i > 0 {
		short, namespace = short[:i], short[i+1:]
	}
	namespace = cmp.Or(namespace, objectfile.DefaultNamespace)
	var template corev1.PodTemplateSpec
	switch strings.ToLower(kind) {
	case "pod", "po":
		kind = "Pod"
		found, e := api.CoreV1().Pods(namespace).Get(ctx, short, metav1.GetOptions{})
		template.Labels, err = found.GetLabels(), e
	case "deployment", "deploy":
		kind = "Deployment"
		found, e := api.AppsV1().Deployments(namespace).Get(ctx, short, metav1.GetOptions{})
		template, err = found.Spec.Template, e
	case "statefulset", "sts":
		kind = "StatefulSet"
		found, e := api.AppsV1().StatefulSets(namespace).Get(ctx, short, metav1.GetOptions{})
		template, err = found.Spec.Template, e
	case "daemonset", "ds":
		kind = "DaemonSet"
		found, e := api.AppsV1().DaemonSets(namespace).Get(ctx, short, metav1.GetOptions{})
		template, err = found.Spec.Template, e
	default:
		return "", nil, process.Usagef("%q: the kind is none of pod, deployment, statefulset, daemonset", s.Name)
	}
	if apierrors.IsNotFound(err) {
		return "", nil, noSuch(ctx, api, kind, namespace, short)
	}
	return namespace, template.Labels, kube.Explain(err)
}

// noSuch is the error about a namespace, a Pod or another object that is not there, with the nearest name that is.
func noSuch(ctx context.Context, api kube.API, kind, namespace, name string) error {
	known := kube.Namespaces(ctx, api)
	if kind == "namespace" || len(known) > 0 && !slices.Contains(known, namespace) {
		if namespace == "" {
			namespace = name
		}
		return fmt.Errorf("there is no namespace %s%s", namespace, nearest.Hint(namespace, known))
	}
	known = known[:0]
	if kind == "Pod" {
		if pods, err := api.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{Limit: kube.Page}); err == nil {
			for i := range pods.Items {
				known = append(known, pods.Items[i].Name)
			}
		}
	}
	return fmt.Errorf("there is no %s %s in namespace %s%s", kind, name, namespace, nearest.Hint(name, known))
}

// injects reports whether a configuration is of an injector of sidecars.
func injects(h *admissionv1.MutatingWebhookConfiguration) bool {
	return slices.ContainsFunc(h.Webhooks, func(w admissionv1.MutatingWebhook) bool {
		return strings.HasSuffix(w.Name, "sidecar-injector.istio.io")
	})
}

// check applies the selectors of a configuration's webhooks.
func check(h *admissionv1.MutatingWebhookConfiguration, ns *corev1.Namespace, pod labels.Set) Verdict {
	c := Verdict{Webhook: h.Name, Revision: h.Labels[contract.RevisionLabel]}
	for _, w := range h.Webhooks {
		of, err := metav1.LabelSelectorAsSelector(w.NamespaceSelector)
		object, wrong := metav1.LabelSelectorAsSelector(w.ObjectSelector)
		if w.NamespaceSelector == nil {
			of = labels.Everything()
		}
		if w.ObjectSelector == nil {
			object = labels.Everything()
		}
		if err == nil && wrong == nil && of.Matches(labels.Set(ns.Labels)) && object.Matches(pod) {
			c.Injected, c.Reason = true, "webhook "+w.Name+" selects "+by(ns, pod)
			return c
		}
	}
	c.Reason = "no webhook of it selects " + by(ns, pod)
	return c
}

// by names the labels that decide about injection.
func by(ns *corev1.Namespace, pod labels.Set) string {
	var said []string
	for _, name := range []string{contract.InjectionLabel, contract.RevisionLabel} {
		if value, ok := ns.Labels[name]; ok {
			said = append(said, fmt.Sprintf("the namespace's %s=%s", name, value))
		}
	}
	for _, name := range []string{contract.InjectLabel, contract.RevisionLabel} {
		if value, ok := pod[name]; ok {
			said = append(said, fmt.Sprintf("the Pod's %s=%s", name, value))
		}
	}
	if len(said) == 0 {
		return fmt.Sprintf("a namespace without %s and %s, and a Pod without %s", contract.InjectionLabel, contract.RevisionLabel,
			contract.InjectLabel)
	}
	return strings.Join(said, " and ")
}
