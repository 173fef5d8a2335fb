package balancer

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"fairlead.dev/pkg/notify"
)

// again is the time until a status that could not be written is written again.
const again = time.Second

// Balance gives addresses of a range until ctx ends.
func Balance(ctx context.Context, kubeconfig string, pool netip.Prefix) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	return run(ctx, client, pool)
}

func run(ctx context.Context, client kubernetes.Interface, pool netip.Prefix) error {
	factory := informers.NewSharedInformerFactory(client, 0)
	services := factory.Core().V1().Services()
	changed := make(chan struct{}, 1)
	tell := func(any) { notify.Wake(changed) }
	if _, err := services.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: tell,
		UpdateFunc: func(any, any) { tell(nil) }, DeleteFunc: tell}); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	for kind, known := range factory.WaitForCacheSync(ctx.Done()) {
		if !known {
			return fmt.Errorf("%s: %w", kind, context.Cause(ctx))
		}
	}
	// What each Service was last told, so that it is told once.
	told := map[types.UID]string{}
	for {
		all, err := services.Lister().List(labels.Everything())
		if err != nil {
			return err
		}
		updates, refused := assign(pool, all)
		for _, s := range updates {
			_, err := client.CoreV1().Services(s.Namespace).UpdateStatus(ctx, s, metav1.UpdateOptions{})
			// After a conflict, an event follows that has the Service as it is.
			if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
				fmt.Printf("status of Service %s/%s: %v\n", s.Namespace, s.Name, err)
				time.AfterFunc(again, func() { tell(nil) })
			}
		}
		now := map[types.UID]string{}
		for _, r := range refused {
			now[r.service.UID] = r.why
			if told[r.service.UID] == r.why {
				continue
			}
			warn(ctx, client, r)
		}
		told = now
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// warn tells a Service's owner by an Event why it has no address. A namespace that ends takes none.
func warn(ctx context.Context, client kubernetes.Interface, r refusal) {
	s, now := r.service, metav1.NewTime(time.Now())
	fmt.Printf("Service %s/%s: %s\n", s.Namespace, s.Name, r.why)
	_, err := client.CoreV1().Events(s.Namespace).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: s.Name + "-", Namespace: s.Namespace},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: s.Namespace, Name: s.Name, UID: s.UID},
		Type:           corev1.EventTypeWarning, Reason: "NoAddress", Message: r.why, FirstTimestamp: now, LastTimestamp: now, Count: 1,
		Source: corev1.EventSource{Component: "balancer"},
	}, metav1.CreateOptions{})
	if err != nil {
		fmt.Printf("Event of Service %s/%s: %v\n", s.Namespace, s.Name, err)
	}
}
