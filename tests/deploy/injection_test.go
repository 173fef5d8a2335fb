package deploy

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
)

// The way of a Pod: the webhooks name a Service, its port leads to the one that the injector's flag opens, and the
// certificate names what the API server dials. No Pod of a service is asked about.
func TestPodsReachTheInjector(t *testing.T) {
	objects := mesh(t)
	_, injector := service(t, objects, "injector")
	configuration, ok := named[*registrationv1.MutatingWebhookConfiguration](objects, argument(injector, "--webhook-configuration"))
	if !ok || len(configuration.Webhooks) != 4 {
		t.Fatalf("no webhook configuration %q with four webhooks", argument(injector, "--webhook-configuration"))
	}
	for _, hook := range configuration.Webhooks {
		at := hook.ClientConfig.Service
		if at == nil || at.Path == nil || *at.Path != "/inject" || at.Port == nil || at.Namespace != namespace {
			t.Fatalf("%s leads to %+v", hook.Name, at)
		}
		s, ok := named[*corev1.Service](objects, at.Name)
		if !ok || s.Spec.Selector["app"] != "injector" {
			t.Fatalf("Service %s leads to %v", at.Name, s)
		}
		i := slices.IndexFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == *at.Port })
		if i < 0 {
			t.Fatalf("Service %s has no port %d", at.Name, *at.Port)
		}
		if got, want := ":"+strconv.Itoa(containerPort(&injector, s.Spec.Ports[i].TargetPort)),
			argument(injector, "--webhook-address"); got != want {
			t.Errorf("the Service leads to port %s of the container, the webhook listens on %s", got, want)
		}
		_, ca := service(t, objects, "ca")
		name := at.Name + "." + at.Namespace + ".svc"
		if !slices.ContainsFunc(ca.Args, func(a string) bool {
			names, ok := strings.CutPrefix(a, "--dns-names="+namespace+"/injector=")
			return ok && slices.Contains(strings.Split(names, ","), name)
		}) {
			t.Errorf("the ca signs no certificate for %s, so that no API server trusts the webhook", name)
		}
		if hook.FailurePolicy == nil || *hook.FailurePolicy != registrationv1.Fail || len(hook.ClientConfig.CABundle) > 0 {
			t.Errorf("%s: failurePolicy %v, caBundle of %d bytes, which is the keeper's to set", hook.Name, hook.FailurePolicy,
				len(hook.ClientConfig.CABundle))
		}
		for _, name := range services {
			d, _ := service(t, objects, name)
			if selects(t, hook.ObjectSelector, d.Spec.Template.Labels) {
				t.Errorf("%s asks about Pods of %s, which must start without an injector", hook.Name, name)
			}
		}
	}
}
