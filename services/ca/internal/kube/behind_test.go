package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/contract"
)

// calls is how an API server calls a Service, verifying it with these roots.
func calls(namespace, service string, roots string) registrationv1.WebhookClientConfig {
	return registrationv1.WebhookClientConfig{CABundle: []byte(roots),
		Service: &registrationv1.ServiceReference{Namespace: namespace, Name: service}}
}

func mutating(name string, calls ...registrationv1.WebhookClientConfig) *registrationv1.MutatingWebhookConfiguration {
	m := &registrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, c := range calls {
		m.Webhooks = append(m.Webhooks, registrationv1.MutatingWebhook{ClientConfig: c})
	}
	return m
}

func validating(name string, calls ...registrationv1.WebhookClientConfig) *registrationv1.ValidatingWebhookConfiguration {
	m := &registrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, c := range calls {
		m.Webhooks = append(m.Webhooks, registrationv1.ValidatingWebhook{ClientConfig: c})
	}
	return m
}

// behind waits until the cluster names these.
func (s *Sync) behind(t *testing.T, want ...string) {
	t.Helper()
	testkit.Eventually(t, testkit.Patience, func() error {
		if got := s.Behind(); !slices.Equal(got, want) {
			return fmt.Errorf("behind are %q, want %q", got, want)
		}
		return nil
	})
}

// run runs what Behind depends on.
func (s *Sync) run(t *testing.T, tasks ...func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, task := range tasks {
		running.Go(func() { _ = task(ctx) })
	}
	t.Cleanup(func() { cancel(); running.Wait() })
}

// A new root is behind in each object until the API server has stored it there; objects of others never are.
func TestWhoHasNotTheRoots(t *testing.T) {
	first, next, foreign := string(testkit.PKI(t).RootPEM), string(testkit.PKI(t).RootPEM), string(testkit.PKI(t).RootPEM)
	injector := mutating("injector", calls("mesh", "injector", first))
	c := newCluster(t, namespace("mesh"), namespace("apps"), namespace("kube-system"), injector,
		mutating("foreign", calls("mesh", "other", foreign), calls("apps", "other", first), calls("mesh", "istiod", first)),
		mutating("without-service", registrationv1.WebhookClientConfig{CABundle: []byte(first)}),
		mutating("without-roots", calls("mesh", "injector", "")),
		validating("watcher", calls("mesh", "config-watcher", first)), validating("foreign", calls("mesh", "other", foreign)))
	c.pem = first
	var written atomic.Bool
	c.PrependReactor("create", "configmaps", func(a k8stesting.Action) (bool, runtime.Object, error) {
		if a.GetNamespace() == "apps" && !written.Load() {
			return true, nil, errors.New("quota") // it is tried again
		}
		return false, nil, nil
	})
	s, _, err := Discover(t.Context(), c.config(t))
	if err != nil {
		t.Fatal(err)
	}
	unknown := []string{"the ConfigMaps with the roots, which the ca has not read yet",
		"the webhook configurations, which the ca cannot read: see its log"}
	s.behind(t, unknown...)
	s.run(t, s.RunRoots)
	s.behind(t, "ConfigMap apps/"+contract.RootConfigMap, unknown[1])
	s.run(t, s.RunWebhooks)
	s.behind(t, "ConfigMap apps/"+contract.RootConfigMap)
	written.Store(true)
	s.behind(t)

	c.mu.Lock()
	c.pem = first + next
	c.changed.Notify()
	c.mu.Unlock()
	s.behind(t, "MutatingWebhookConfiguration injector", "ValidatingWebhookConfiguration watcher")
	hooks := c.AdmissionregistrationV1()
	if _, err := hooks.MutatingWebhookConfigurations().Update(t.Context(), mutating("injector", calls("mesh", "injector", next+first)),
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.behind(t, "ValidatingWebhookConfiguration watcher")
	if _, err := hooks.ValidatingWebhookConfigurations().Update(t.Context(), validating("watcher", calls("mesh", "config-watcher",
		first+next+foreign)), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.behind(t)
	// A tag that comes with the old root alone counts, too.
	if _, err := hooks.MutatingWebhookConfigurations().Create(t.Context(), mutating("tag", calls("mesh", "injector", next+first),
		calls("mesh", "injector", first)), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.behind(t, "MutatingWebhookConfiguration tag")
	if err := c.CoreV1().ConfigMaps("apps").Delete(t.Context(), contract.RootConfigMap, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.has(t, "apps", contract.RootConfigMap, RootKey, first+next)
	gone := namespace("apps")
	gone.Status.Phase = corev1.NamespaceTerminating
	if _, err := c.CoreV1().Namespaces().Update(t.Context(), gone, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.behind(t, "MutatingWebhookConfiguration tag")
}

// Without the right to read webhook configurations nobody knows what the API server has: the rotation must wait.
func TestWebhooksThatCannotBeReadAreBehind(t *testing.T) {
	c := newCluster(t, namespace("mesh"))
	refused := make(chan struct{}, 100)
	c.PrependReactor("list", "mutatingwebhookconfigurations", func(k8stesting.Action) (bool, runtime.Object, error) {
		select {
		case refused <- struct{}{}:
		default:
		}
		return true, nil, errors.New("forbidden")
	})
	s, _, err := Discover(t.Context(), c.config(t))
	if err != nil {
		t.Fatal(err)
	}
	s.run(t, s.RunRoots, s.RunWebhooks)
	<-refused
	s.behind(t, "the webhook configurations, which the ca cannot read: see its log")
}
