// Package kube connects commands to the API server that a kubeconfig names, as kubectl does.
package kube

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Page is the number of objects that a list is asked for at once.
const Page = 500

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
