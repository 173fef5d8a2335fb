package kube

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/tests/internal/kubeapi"
)

// writers create objects at the same time.
const writers = 16

// Load defines the kinds by the CustomResourceDefinitions of a directory, and creates the mesh.
func (a *API) Load(ctx context.Context, s Spec, definitions string) error {
	if err := a.define(ctx, definitions); err != nil {
		return err
	}
	namespaces := []string{"istio-system"}
	for n := range s.Namespaces {
		namespaces = append(namespaces, Namespace(n))
	}
	if err := parallel(ctx, len(namespaces), func(ctx context.Context, i int) error {
		_, err := a.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespaces[i]}},
			metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}
	pods := s.pods()
	if err := parallel(ctx, len(pods), func(ctx context.Context, i int) error {
		client, p := a.Client.CoreV1().Pods(Namespace(pods[i].n)), pods[i].object()
		p, err := client.Create(ctx, p, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		p.Status = pods[i].status()
		_, err = client.UpdateStatus(ctx, p, metav1.UpdateOptions{})
		return err
	}); err != nil {
		return err
	}
	atPod := map[string]string{}
	for _, p := range pods {
		atPod[address(p.n, 0, p.e)] = p.name()
	}
	if err := parallel(ctx, s.Services(), func(ctx context.Context, k int) error {
		n, i := k/PerNamespace, k%PerNamespace
		if _, err := a.Client.CoreV1().Services(Namespace(n)).Create(ctx, NewService(ServiceName(i), Namespace(n), labels(i)),
			metav1.CreateOptions{}); err != nil {
			return err
		}
		slice := NewSlice(n, i)
		for e := range slice.Endpoints {
			if name := atPod[slice.Endpoints[e].Addresses[0]]; name != "" {
				slice.Endpoints[e].TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: Namespace(n), Name: name}
			}
		}
		_, err := a.Client.DiscoveryV1().EndpointSlices(Namespace(n)).Create(ctx, slice, metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}
	return parallel(ctx, s.Namespaces, func(ctx context.Context, n int) error {
		for _, o := range rulesOf(n) {
			if _, err := a.Dynamic.Resource(o.resource).Namespace(Namespace(n)).Create(ctx, o.Unstructured, metav1.CreateOptions{}); err != nil {
				return err
			}
		}
		return nil
	})
}

// define creates the kinds of the groups that both systems read, and waits until they are served.
func (a *API) define(ctx context.Context, definitions string) error {
	var files []string
	for _, group := range []string{"istio.io", "gateway.networking.k8s.io"} {
		found, err := filepath.Glob(filepath.Join(definitions, "*."+group+".yaml"))
		if err != nil {
			return err
		}
		files = append(files, found...)
	}
	if len(files) == 0 {
		return fmt.Errorf("no CustomResourceDefinitions in %q", definitions)
	}
	names, err := kubeapi.ApplyCRDs(ctx, a.config, files...)
	if err != nil {
		return err
	}
	return a.processes[1].Until(ctx, startWithin, func() error {
		served, err := a.Client.Discovery().ServerPreferredResources()
		if err != nil {
			return err
		}
		found := map[string]bool{}
		for _, list := range served {
			group, _, _ := strings.Cut(list.GroupVersion, "/")
			for _, r := range list.APIResources {
				found[r.Name+"."+group] = true
			}
		}
		for _, name := range names {
			if !found[name] {
				return fmt.Errorf("the API server does not serve %s", name)
			}
		}
		return nil
	})
}

// parallel calls f with 0 to n-1, some at the same time, until one fails.
func parallel(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(writers)
	for i := range n {
		g.Go(func() error { return f(ctx, i) })
	}
	return g.Wait()
}
