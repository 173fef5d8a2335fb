package policies

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

// pause is the shortest time between two tables: what changes meanwhile goes into one.
const pause = 50 * time.Millisecond

// Enforce writes the table whenever something changes, until ctx ends. It returns an error if nft refuses one.
func Enforce(ctx context.Context, kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	namespaces, pods, policies := factory.Core().V1().Namespaces(), factory.Core().V1().Pods(), factory.Networking().V1().NetworkPolicies()
	changed := make(chan struct{}, 1)
	tell := func(any) {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	for _, informer := range []cache.SharedIndexInformer{namespaces.Informer(), pods.Informer(), policies.Informer()} {
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: tell, UpdateFunc: func(any, any) { tell(nil) },
			DeleteFunc: tell}); err != nil {
			return err
		}
	}
	factory.Start(ctx.Done())
	for kind, known := range factory.WaitForCacheSync(ctx.Done()) {
		if !known {
			return fmt.Errorf("%s: %w", kind, context.Cause(ctx))
		}
	}
	for last := ""; ; {
		all, err := namespaces.Lister().List(labels.Everything())
		if err != nil {
			return err
		}
		ofPods, err := pods.Lister().List(labels.Everything())
		if err != nil {
			return err
		}
		of, err := policies.Lister().List(labels.Everything())
		if err != nil {
			return err
		}
		rules, err := Rules(all, ofPods, of)
		if err != nil {
			return err
		}
		if rules != last {
			if err := write(ctx, rules); err != nil {
				return err
			}
			last = rules
		}
		time.Sleep(pause)
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

func write(ctx context.Context, rules string) error {
	nft := exec.CommandContext(ctx, "nft", "-f", "-")
	nft.Stdin = strings.NewReader(rules)
	var said bytes.Buffer
	nft.Stderr = &said
	if err := nft.Run(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("nft: %w: %s\n%s", err, said.String(), rules)
	}
	return nil
}
