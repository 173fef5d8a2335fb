package whole

import (
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/analysis/finding"
)

// istioWebhook is the suffix of the names of the mesh's webhooks.
const istioWebhook = ".istio.io"

// checkWebhooks finds webhooks of the mesh that call nobody, and Pods for which two injectors are called.
func checkWebhooks(r *run) {
	for _, o := range r.kind("MutatingWebhookConfiguration") {
		for i, hook := range o.Body.(*admissionv1.MutatingWebhookConfiguration).Webhooks {
			r.webhookClient(o, i, hook.Name, hook.ClientConfig)
		}
	}
	for _, o := range r.kind("ValidatingWebhookConfiguration") {
		for i, hook := range o.Body.(*admissionv1.ValidatingWebhookConfiguration).Webhooks {
			r.webhookClient(o, i, hook.Name, hook.ClientConfig)
		}
	}
	r.twoInjectors()
}

func (r *run) webhookClient(o *Object, i int, name string, client admissionv1.WebhookClientConfig) {
	if !strings.HasSuffix(name, istioWebhook) {
		return
	}
	field := fmt.Sprintf("webhooks[%d].clientConfig", i)
	switch {
	case client.URL != nil:
		u, err := url.Parse(*client.URL)
		if err != nil || u.Scheme != "https" || u.Hostname() == "" {
			r.report(o, finding.WebhookHostInvalid, field+".url", *client.URL, "is no https URL with a host", "write https://HOST:PORT/PATH")
		} else if _, err := netip.ParseAddr(u.Hostname()); err == nil {
			r.report(o, finding.WebhookAddress, field+".url", *client.URL, "names an address: the webhook fails when the address changes",
				"name a host")
		}
	case client.Service != nil:
		at := field + ".service"
		s := r.get("", "Service", client.Service.Namespace, client.Service.Name)
		if s == nil || s.Body == nil {
			r.report(o, finding.WebhookInvalid, at, client.Service.Name,
				fmt.Sprintf("there is no Service %s/%s, so that the API server calls nobody", client.Service.Namespace, client.Service.Name),
				"remove the webhook, or start what it calls")
			return
		}
		port := int32(443)
		if client.Service.Port != nil {
			port = *client.Service.Port
		}
		service := s.Body.(*corev1.Service)
		for _, p := range service.Spec.Ports {
			if p.Port == port {
				return
			}
		}
		r.report(o, finding.WebhookInvalid, at+".port", port,
			fmt.Sprintf("Service %s/%s has no such port", client.Service.Namespace, client.Service.Name), "use one of its ports")
	}
}

// situations are label sets of namespaces and Pods in which at most one injector may be called.
var situations = []struct{ namespace, pod labels.Set }{
	{labels.Set{contract.InjectionLabel: "enabled"}, labels.Set{}},
	{labels.Set{}, labels.Set{contract.InjectLabel: "true"}},
	{labels.Set{}, labels.Set{}},
}

// twoInjectors finds injectors of different configurations that are called for the same Pod.
func (r *run) twoInjectors() {
	type hook struct {
		o     *Object
		field string
		h     admissionv1.MutatingWebhook
	}
	var hooks []hook
	for _, o := range r.kind("MutatingWebhookConfiguration") {
		for i, h := range o.Body.(*admissionv1.MutatingWebhookConfiguration).Webhooks {
			if strings.HasSuffix(h.Name, "sidecar-injector.istio.io") {
				hooks = append(hooks, hook{o, fmt.Sprintf("webhooks[%d]", i), h})
			}
		}
	}
	for i, one := range hooks {
		for _, other := range hooks[:i] {
			if one.o == other.o {
				continue
			}
			for _, s := range append(situations, chosen(one.h.NamespaceSelector, one.h.ObjectSelector)) {
				if matches(one.h.NamespaceSelector, s.namespace) && matches(one.h.ObjectSelector, s.pod) &&
					matches(other.h.NamespaceSelector, s.namespace) && matches(other.h.ObjectSelector, s.pod) {
					r.report(one.o, finding.WebhookInvalid, one.field, one.h.Name,
						fmt.Sprintf("is called for the same Pods as %s of %s: both would inject", other.h.Name, other.o.Key.Name),
						"give them selectors that exclude each other")
					break
				}
			}
		}
	}
}

// chosen is the situation that selectors ask for in their matchLabels.
func chosen(namespace, pod *metav1.LabelSelector) struct{ namespace, pod labels.Set } {
	out := struct{ namespace, pod labels.Set }{labels.Set{}, labels.Set{}}
	fill := func(into labels.Set, s *metav1.LabelSelector) {
		if s == nil {
			return
		}
		for k, v := range s.MatchLabels {
			into[k] = v
		}
		for _, e := range s.MatchExpressions {
			if e.Operator == metav1.LabelSelectorOpIn && len(e.Values) > 0 {
				into[e.Key] = e.Values[0]
			}
		}
	}
	fill(out.namespace, namespace)
	fill(out.pod, pod)
	return out
}
