package webhook

import (
	"context"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	discoveryclient "k8s.io/client-go/kubernetes/typed/discovery/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// Follow returns a task that calls Set with the addresses of the API servers, which they keep in EndpointSlice
// default/kubernetes. Without a right to read it, none are set.
func (a *APIServers) Follow(api *rest.Config) (func(context.Context) error, error) {
	client, err := discoveryclient.NewForConfig(api)
	if err != nil {
		return nil, err
	}
	told := func(o any) {
		var addresses []string
		if slice, ok := o.(*discoveryv1.EndpointSlice); ok {
			for _, e := range slice.Endpoints {
				addresses = append(addresses, e.Addresses...)
			}
		}
		a.Set(addresses)
	}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(client.RESTClient(), "endpointslices", metav1.NamespaceDefault,
			fields.OneTermEqualSelector(metav1.ObjectNameField, "kubernetes")),
		ObjectType: &discoveryv1.EndpointSlice{},
		Handler:    cache.ResourceEventHandlerFuncs{AddFunc: told, UpdateFunc: func(_, o any) { told(o) }, DeleteFunc: func(any) { a.Set(nil) }},
	})
	return func(ctx context.Context) error {
		informer.RunWithContext(ctx)
		return nil
	}, nil
}
