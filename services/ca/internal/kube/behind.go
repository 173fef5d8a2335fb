package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	hookinformers "k8s.io/client-go/informers/admissionregistration/v1"
	"k8s.io/client-go/tools/cache"

	"fairlead.dev/pkg/tlsconf"
)

// seen is what informers have of the cluster, for Behind. Its stores are nil until they are filled once.
type seen struct {
	mu                  sync.Mutex
	namespaces, roots   cache.Store
	mutating, validator cache.Store
}

// istiodPrefix is how the Services of Istio's own control plane begin. It writes the caBundle of its webhooks itself,
// with its own root, also while the mesh trusts that root.
const istiodPrefix = "istiod"

// RunWebhooks follows the webhook configurations of the cluster until ctx ends, for Behind. It writes nothing.
func (s *Sync) RunWebhooks(ctx context.Context) error {
	mutating := hookinformers.NewMutatingWebhookConfigurationInformer(s.cfg.API, 0, cache.Indexers{})
	validating := hookinformers.NewValidatingWebhookConfigurationInformer(s.cfg.API, 0, cache.Indexers{})
	for _, informer := range []cache.SharedIndexInformer{mutating, validating} {
		if err := errors.Join(informer.SetTransform(callers), informer.SetWatchErrorHandlerWithContext(s.webhooksUnseen)); err != nil {
			return err
		}
		go informer.RunWithContext(ctx)
	}
	if cache.WaitForCacheSync(ctx.Done(), mutating.HasSynced, validating.HasSynced) {
		s.seen.mu.Lock()
		s.seen.mutating, s.seen.validator = mutating.GetStore(), validating.GetStore()
		s.seen.mu.Unlock()
	}
	<-ctx.Done()
	return nil
}

func (s *Sync) webhooksUnseen(_ context.Context, _ *cache.Reflector, err error) {
	s.cfg.Log.Warn("webhook configurations cannot be read, so that a rotation of the root waits: it is unknown whether the API server has "+
		"the new one; the ca's ClusterRole must list and watch mutating- and validatingwebhookconfigurations", "error", err)
}

// callers keeps of a webhook configuration which Services the API server calls, and with which roots it verifies them.
func callers(v any) (any, error) {
	switch o := v.(type) {
	case *registrationv1.MutatingWebhookConfiguration:
		out := &registrationv1.MutatingWebhookConfiguration{ObjectMeta: meta(o.ObjectMeta)}
		for _, w := range o.Webhooks {
			out.Webhooks = append(out.Webhooks, registrationv1.MutatingWebhook{ClientConfig: w.ClientConfig})
		}
		return out, nil
	case *registrationv1.ValidatingWebhookConfiguration:
		out := &registrationv1.ValidatingWebhookConfiguration{ObjectMeta: meta(o.ObjectMeta)}
		for _, w := range o.Webhooks {
			out.Webhooks = append(out.Webhooks, registrationv1.ValidatingWebhook{ClientConfig: w.ClientConfig})
		}
		return out, nil
	}
	return v, nil
}

// Behind names the objects by which something in the cluster verifies the mesh, and which have not all roots of the
// bundle yet: ConfigMaps with the roots, by which Pods begin, and webhook configurations, by which the API server
// verifies webhooks. It also names what is not known. The list is sorted, and empty when everything is there.
func (s *Sync) Behind() []string {
	pem, _ := s.cfg.Roots()
	s.seen.mu.Lock()
	defer s.seen.mu.Unlock()
	var out []string
	if s.seen.roots == nil {
		out = append(out, "the ConfigMaps with the roots, which the ca has not read yet")
	} else {
		out = s.namespacesBehind(pem)
	}
	if s.seen.mutating == nil {
		out = append(out, "the webhook configurations, which the ca cannot read: see its log")
	} else {
		out = append(out, s.webhooksBehind(pem)...)
	}
	slices.Sort(out)
	return out
}

// namespacesBehind names the ConfigMaps that are to have the roots.
func (s *Sync) namespacesBehind(pem string) (out []string) {
	for _, o := range s.seen.namespaces.List() {
		namespace, ok := o.(*corev1.Namespace)
		if !ok || !hasRoot(namespace) {
			continue
		}
		cached, _, _ := s.seen.roots.GetByKey(namespace.Name + "/" + s.cfg.RootConfigMap) // a map's error: never
		if m, ok := cached.(*corev1.ConfigMap); !ok || m.Data[RootKey] != pem {
			out = append(out, fmt.Sprintf("ConfigMap %s/%s", namespace.Name, s.cfg.RootConfigMap))
		}
	}
	return out
}

// webhooksBehind names the configurations of webhooks that are verified with some root of the bundle, and not with all.
func (s *Sync) webhooksBehind(pem string) (out []string) {
	wanted := certificatesOf([]byte(pem))
	for _, o := range s.seen.mutating.List() {
		if c, ok := o.(*registrationv1.MutatingWebhookConfiguration); ok && slices.ContainsFunc(c.Webhooks,
			func(w registrationv1.MutatingWebhook) bool { return s.lacks(w.ClientConfig, wanted) }) {
			out = append(out, "MutatingWebhookConfiguration "+c.Name)
		}
	}
	for _, o := range s.seen.validator.List() {
		if c, ok := o.(*registrationv1.ValidatingWebhookConfiguration); ok && slices.ContainsFunc(c.Webhooks,
			func(w registrationv1.ValidatingWebhook) bool { return s.lacks(w.ClientConfig, wanted) }) {
			out = append(out, "ValidatingWebhookConfiguration "+c.Name)
		}
	}
	return out
}

// lacks reports whether a webhook of the mesh is verified with some of the roots, and not with all. Webhooks are the
// mesh's if their Service is in a namespace of Fairlead's services.
func (s *Sync) lacks(c registrationv1.WebhookClientConfig, wanted map[string]bool) bool {
	if c.Service == nil || !slices.Contains(s.cfg.Namespaces, c.Service.Namespace) || strings.HasPrefix(c.Service.Name, istiodPrefix) {
		return false
	}
	has := certificatesOf(c.CABundle)
	known := 0
	for der := range wanted {
		if has[der] {
			known++
		}
	}
	return known > 0 && known < len(wanted)
}

// certificatesOf has the DER of each certificate in a PEM text.
func certificatesOf(pem []byte) map[string]bool {
	certs, err := tlsconf.ParseCertificates(pem)
	if err != nil {
		return nil
	}
	out := map[string]bool{}
	for _, c := range certs {
		out[string(c.Raw)] = true
	}
	return out
}
