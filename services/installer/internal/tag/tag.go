// Package tag makes and reads revision tags, as istioctl's, and is alone in writing them: a tag is a
// MutatingWebhookConfiguration that injects where the label istio.io/rev names the tag, by the injector of the revision
// that the tag stands for, and a Service of the tag's name that leads to that revision. The tag "default" also injects
// where istio-injection is enabled, and validates the objects that name no revision. Make, List and Restore are
// functions of objects; Client works with an API server.
package tag

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/proto/fairlead/contract"
)

const (
	// Default is the name of the tag, and of the revision, that is meant where none is named.
	Default = "default"

	labelTag = "istio.io/tag"
	// deactivated is a label that nothing has: istioctl's way to silence a webhook and keep it.
	deactivated, never = "istio.io/deactivated", "never-match"

	validator     = "istiod-default-validator"
	webhookPrefix = "istio-revision-tag-"
	servicePrefix = "istiod-revision-tag-"
)

// Tag is a revision tag, or a revision that no tag stands for.
type Tag struct {
	// Tag is its name; empty for a revision without one.
	Tag      string `json:"tag"`
	Revision string `json:"revision"`
	// Namespaces have the tag in their label istio.io/rev.
	Namespaces []string `json:"namespaces"`
}

// List lists tags and, without a tag, revisions that none stands for, in the order of revisions.
func List(webhooks []admissionv1.MutatingWebhookConfiguration, namespaces []corev1.Namespace) []Tag {
	var list []Tag
	tagged := map[string]bool{}
	for i := range webhooks {
		if name, revision := webhooks[i].Labels[labelTag], webhooks[i].Labels[contract.RevisionLabel]; name != "" && revision != "" {
			tagged[revision] = true
			list = append(list, Tag{name, revision, labelled(namespaces, name)})
		}
	}
	for i := range webhooks {
		name, revision := webhooks[i].Labels[labelTag], webhooks[i].Labels[contract.RevisionLabel]
		if name == "" && revision != "" && !tagged[revision] {
			tagged[revision] = true
			list = append(list, Tag{"", revision, []string{}})
		}
	}
	slices.SortFunc(list, func(a, b Tag) int { return cmp.Or(cmp.Compare(a.Revision, b.Revision), cmp.Compare(a.Tag, b.Tag)) })
	return list
}

func labelled(namespaces []corev1.Namespace, revision string) []string {
	names := []string{}
	for _, ns := range namespaces {
		if ns.Labels[contract.RevisionLabel] == revision {
			names = append(names, ns.Name)
		}
	}
	slices.Sort(names)
	return names
}

// Using lists the namespaces that lose injection with a tag: those of List, and for the tag "default" those where
// istio-injection is enabled.
func Using(namespaces []corev1.Namespace, name string) []string {
	names := labelled(namespaces, name)
	for _, ns := range namespaces {
		if name == Default && ns.Labels[contract.InjectionLabel] == "enabled" && !slices.Contains(names, ns.Name) {
			names = append(names, ns.Name)
		}
	}
	slices.Sort(names)
	return names
}

var valid = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// CheckName says what is wrong with the name of a tag or a revision.
func CheckName(name string) error {
	if most := 63 - len(servicePrefix); len(name) > most || !valid.MatchString(name) {
		return fmt.Errorf("%q cannot be a tag: use lower-case letters, digits and hyphens, at most %d, with a letter or digit at both ends", name,
			most)
	}
	return nil
}

// Options of Make.
type Options struct {
	Tag, Revision string
	// Webhook is the name of the MutatingWebhookConfiguration; empty takes istio-revision-tag-TAG.
	Webhook string
	// AutoInject injects, of the tag "default", where no label says anything.
	AutoInject bool
}

// Objects are those that a tag consists of.
type Objects struct {
	Webhook *admissionv1.MutatingWebhookConfiguration
	// Validator is set for the tag "default" alone, Service where the revision has one.
	Validator *admissionv1.ValidatingWebhookConfiguration
	Service   *corev1.Service
}

// List lists them in the order in which they are applied.
func (o Objects) List() []any {
	var list []any
	if o.Service != nil {
		list = append(list, o.Service)
	}
	list = append(list, o.Webhook)
	if o.Validator != nil {
		list = append(list, o.Validator)
	}
	return list
}

// Make makes the objects of a tag from the injector of its revision and the Service of the revision's control plane,
// which may be nil.
func Make(o Options, injector *admissionv1.MutatingWebhookConfiguration, istiod *corev1.Service) (Objects, error) {
	if len(injector.Webhooks) == 0 {
		return Objects{}, fmt.Errorf("MutatingWebhookConfiguration %s has no webhook that a tag could be made from; install revision %s again",
			injector.Name, o.Revision)
	}
	hook := admissionv1.MutatingWebhookConfiguration{
		TypeMeta:   metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "MutatingWebhookConfiguration"},
		ObjectMeta: meta(injector.ObjectMeta, o),
	}
	if hook.Name = o.Webhook; hook.Name == "" {
		hook.Name = webhookPrefix + o.Tag
	}
	for _, s := range selectors(o.Tag, o.AutoInject) {
		w := *injector.Webhooks[0].DeepCopy()
		w.Name, w.NamespaceSelector, w.ObjectSelector = s.name(), s.namespaces, s.pods
		hook.Webhooks = append(hook.Webhooks, w)
	}
	out := Objects{Webhook: &hook}
	if istiod != nil {
		out.Service = service(o, istiod)
	}
	if o.Tag == Default {
		out.Validator = validating(hook.ObjectMeta, injector.Webhooks[0].ClientConfig)
	}
	return out, nil
}

// meta has the labels and annotations of an object of the revision, and those of the tag. What kubectl or an
// installation notes of its own objects is left out: a tag belongs to neither.
func meta(of metav1.ObjectMeta, o Options) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Labels: map[string]string{}}
	for k, v := range of.Labels {
		if !strings.HasPrefix(k, "operator.istio.io/") && !strings.HasPrefix(k, "install.operator.istio.io/") &&
			!strings.HasPrefix(k, "fairlead.dev/") {
			m.Labels[k] = v
		}
	}
	m.Labels[labelTag], m.Labels[contract.RevisionLabel] = o.Tag, o.Revision
	return m
}

func service(o Options, istiod *corev1.Service) *corev1.Service {
	s := &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: meta(istiod.ObjectMeta, o)}
	s.Name, s.Namespace = servicePrefix+o.Tag, istiod.Namespace
	s.Spec.Selector = istiod.Spec.Selector
	for _, p := range istiod.Spec.Ports {
		p.NodePort = 0
		s.Spec.Ports = append(s.Spec.Ports, p)
	}
	return s
}

// validating is the validator of objects without a revision. The API server may reach none: failurePolicy is Ignore
// until the control plane, which serves it, says otherwise.
func validating(m metav1.ObjectMeta, server admissionv1.WebhookClientConfig) *admissionv1.ValidatingWebhookConfiguration {
	server = *server.DeepCopy()
	if server.Service != nil {
		path := "/validate"
		server.Service.Path = &path
	}
	if server.URL != nil { // https://HOST:PORT/inject, with more parts of a path behind it
		base, _, _ := strings.Cut(strings.TrimPrefix(*server.URL, "https://"), "/")
		url := "https://" + base + "/validate"
		server.URL = &url
	}
	ignore, none := admissionv1.Ignore, admissionv1.SideEffectClassNone
	v := &admissionv1.ValidatingWebhookConfiguration{
		TypeMeta:   metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "ValidatingWebhookConfiguration"},
		ObjectMeta: *m.DeepCopy(),
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "validation.istio.io", ClientConfig: server, SideEffects: &none, AdmissionReviewVersions: []string{"v1"}, FailurePolicy: &ignore,
			Rules: []admissionv1.RuleWithOperations{{
				Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
				Rule: admissionv1.Rule{
					APIGroups:   []string{"security.istio.io", "networking.istio.io", "telemetry.istio.io", "extensions.istio.io"},
					APIVersions: []string{"*"}, Resources: []string{"*"},
				},
			}},
			ObjectSelector: where(absent(contract.RevisionLabel)),
		}},
	}
	v.Name, v.Labels["app"], v.Labels["istio"] = validator, "istiod", "istiod"
	return v
}
