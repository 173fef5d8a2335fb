package deploy

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/proto/fairlead/contract"
)

// argument is the value of a flag of a service's container.
func argument(c corev1.Container, flag string) string {
	for _, a := range c.Args {
		if value, ok := strings.CutPrefix(a, flag+"="); ok {
			return value
		}
	}
	return ""
}

// The way of a review: the webhook configuration names a Service, its port leads to the one that config-watcher's flag
// opens, and the certificate names what the API server dials.
func TestReviewsReachTheWebhook(t *testing.T) {
	objects := mesh(t)
	_, watcher := service(t, objects, "config-watcher")
	configuration, ok := named[*registrationv1.ValidatingWebhookConfiguration](objects, argument(watcher, "--webhook-configuration"))
	if !ok || len(configuration.Webhooks) != 2 {
		t.Fatalf("no webhook configuration %q with two webhooks", argument(watcher, "--webhook-configuration"))
	}
	hook := configuration.Webhooks[0]
	at := hook.ClientConfig.Service
	if at == nil || at.Path == nil || *at.Path != "/validate" || at.Port == nil || at.Namespace != namespace {
		t.Fatalf("it leads to %+v", at)
	}
	s, ok := named[*corev1.Service](objects, at.Name)
	if !ok || s.Spec.Selector["app"] != "config-watcher" {
		t.Fatalf("Service %s leads to %v", at.Name, s)
	}
	i := slices.IndexFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == *at.Port })
	if i < 0 {
		t.Fatalf("Service %s has no port %d", at.Name, *at.Port)
	}
	if got, want := ":"+strconv.Itoa(containerPort(&watcher, s.Spec.Ports[i].TargetPort)),
		argument(watcher, "--webhook-address"); got != want {
		t.Errorf("the Service leads to port %s of the container, the webhook listens on %s", got, want)
	}
	_, ca := service(t, objects, "ca")
	name := at.Name + "." + at.Namespace + ".svc"
	if !slices.ContainsFunc(ca.Args, func(a string) bool {
		names, ok := strings.CutPrefix(a, "--dns-names="+namespace+"/config-watcher=")
		return ok && slices.Contains(strings.Split(names, ","), name)
	}) {
		t.Errorf("the ca signs no certificate for %s, so that no API server trusts the webhook", name)
	}
	// Fail from the beginning would keep out the objects that a mesh starts with.
	if hook.FailurePolicy == nil || *hook.FailurePolicy != registrationv1.Ignore || len(hook.ClientConfig.CABundle) > 0 {
		t.Errorf("failurePolicy %v, caBundle of %d bytes: both are the keeper's to set", hook.FailurePolicy, len(hook.ClientConfig.CABundle))
	}
	advice := configuration.Webhooks[1]
	if advice.Name != contract.AdviceWebhook || *advice.FailurePolicy != registrationv1.Ignore ||
		*advice.ClientConfig.Service.Path != *at.Path || advice.Rules[0].APIGroups[0] != "gateway.networking.k8s.io" {
		t.Errorf("the webhook that advises about the Gateway API is %+v", advice)
	}
	for _, group := range []string{"networking.istio.io", "security.istio.io", "telemetry.istio.io", "extensions.istio.io", "fairlead.dev"} {
		if !slices.ContainsFunc(hook.Rules, func(r registrationv1.RuleWithOperations) bool { return slices.Contains(r.APIGroups, group) }) {
			t.Errorf("objects of %s are not reviewed", group)
		}
	}
}
