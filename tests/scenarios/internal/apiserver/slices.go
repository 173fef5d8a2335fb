package apiserver

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"fairlead.dev/tests/internal/wait"
)

// Endpoints are the addresses of a Service's Pods, and whether each is ready.
type Endpoints map[netip.Addr]bool

const (
	// slicesWithin is how long the controller may take to make EndpointSlices of Services and Pods.
	slicesWithin = 30 * time.Second
	// often is how long to rest between two looks.
	often = 5 * time.Millisecond
)

var sliceResource = discoveryv1.SchemeGroupVersion.WithResource("endpointslices")

// controlled selects what the endpointslice-controller has made, for a Service or for all.
func controlled(service string) string {
	selector := discoveryv1.LabelManagedBy + "=endpointslice-controller.k8s.io"
	if service != "" {
		selector += "," + discoveryv1.LabelServiceName + "=" + service
	}
	return selector
}

// removeSlices removes those of a Service that is gone, as Kubernetes' garbage collector does.
func (s *Server) removeSlices(ctx context.Context, namespace, service string) error {
	return s.client.Resource(sliceResource).Namespace(namespace).DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: controlled(service)})
}

// AwaitSlices returns when the EndpointSlices of the Services that have selectors are those of the Pods; want has the
// endpoints of each by namespace/name. It returns the newest version of any EndpointSlice.
func (s *Server) AwaitSlices(ctx context.Context, want map[string]Endpoints) (newest Written, err error) {
	err = wait.Until(ctx, often, slicesWithin, func() error {
		now, difference, err := s.slices(ctx, want)
		if newest = now; err == nil && difference != "" {
			err = fmt.Errorf("EndpointSlices are not those of the Pods: %s", difference)
		}
		return err
	})
	return newest, err
}

// slices compares what there is with what should be.
func (s *Server) slices(ctx context.Context, want map[string]Endpoints) (newest Written, difference string, err error) {
	// Of the API server's cache: older is not wrong, only early.
	list, err := s.client.Resource(sliceResource).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return newest, "", err
	}
	have := map[string]Endpoints{}
	for i := range list.Items {
		u := &list.Items[i]
		now, err := written(u)
		if err != nil {
			return newest, "", err
		}
		if now.Version > newest.Version {
			newest = now
		}
		slice := &discoveryv1.EndpointSlice{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, slice); err != nil {
			return newest, "", err
		}
		service := slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName]
		if !strings.HasPrefix(slice.Labels[discoveryv1.LabelManagedBy], "endpointslice-controller") || want[service] == nil {
			continue
		}
		if have[service] == nil {
			have[service] = Endpoints{}
		}
		for _, e := range slice.Endpoints {
			for _, text := range e.Addresses {
				ip, err := netip.ParseAddr(text)
				if err != nil {
					return newest, "", err
				}
				have[service][ip] = e.Conditions.Ready != nil && *e.Conditions.Ready
			}
		}
	}
	for service, endpoints := range want {
		if !maps.Equal(have[service], endpoints) || have[service] == nil {
			return newest, fmt.Sprintf("%s has %v, and its Pods are %v", service, have[service], endpoints), nil
		}
	}
	return newest, "", nil
}
