// Package kube connects commands to the API server that a kubeconfig names, as kubectl does.
package kube

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Page is the number of objects that a list is asked for at once.
const Page = 500

// RequestTimeout bounds one request to an API server, unless a flag says otherwise.
const RequestTimeout = 30 * time.Second

// Config names an API server.
type Config struct {
	// Kubeconfig is a file; "" takes KUBECONFIG, the user's own file, or the Pod's service account.
	Kubeconfig string
	// Context is a context of the file; "" takes the current one.
	Context string
	// As and AsGroups impersonate a user.
	As       string
	AsGroups []string
	// Timeout of one request.
	Timeout time.Duration
}

func (c Config) loader() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.Kubeconfig
	rules.WarnIfAllMissing = false
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{
		CurrentContext: c.Context, AuthInfo: clientcmdapi.AuthInfo{Impersonate: c.As, ImpersonateGroups: c.AsGroups},
	})
}

// Rest returns the configuration of clients. Nothing is asked.
func (c Config) Rest() (*rest.Config, error) {
	config, err := c.loader().ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("no API server: %w; name a file with --kubeconfig, or a context of it with --context", err)
	}
	config.QPS, config.Burst, config.UserAgent, config.Timeout = 50, 100, "fairlead", c.Timeout
	config.WarningHandler = rest.NoWarnings{}
	return config, nil
}

// API returns a client of the API server. Nothing is asked.
func (c Config) API() (API, error) {
	config, err := c.Rest()
	if err != nil {
		return nil, err
	}
	return NewAPI(config)
}

// Contexts lists the contexts of the kubeconfig.
func (c Config) Contexts() []string {
	raw, err := c.loader().RawConfig()
	if err != nil {
		return nil
	}
	var names []string
	for name := range raw.Contexts {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Namespaces lists the first Page namespaces of an API server; none if they cannot be listed.
func Namespaces(ctx context.Context, api API) (names []string) {
	list, err := api.CoreV1().Namespaces().List(ctx, metav1.ListOptions{Limit: Page})
	if err != nil {
		return nil
	}
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}

// EachPod calls do for each Pod that a selector selects in a namespace, "" for all, until do returns an error. It reads
// page by page, so that only one page is in memory.
func EachPod(ctx context.Context, api API, namespace, selector string, do func(*corev1.Pod) error) error {
	for o := (metav1.ListOptions{LabelSelector: selector, Limit: Page}); ; {
		list, err := api.CoreV1().Pods(namespace).List(ctx, o)
		if err != nil {
			return Explain(err)
		}
		for i := range list.Items {
			if err := do(&list.Items[i]); err != nil {
				return err
			}
		}
		if o.Continue = list.Continue; o.Continue == "" {
			return nil
		}
	}
}

// Explain says of an error of a request what to do about it. Other errors stay as they are.
func Explain(err error) error {
	var unreached *url.Error
	switch {
	case err == nil:
		return nil
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w; ask for this right, or name another user with --context or --kubeconfig", err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the API server does not know who asks: %w; renew the credentials of the kubeconfig", err)
	case errors.As(err, &unreached):
		return fmt.Errorf("the API server does not answer: %w; name another one with --context or --kubeconfig", err)
	}
	return err
}
