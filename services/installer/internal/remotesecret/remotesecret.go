// Package remotesecret makes the Secrets by which one cluster's control plane reads another cluster, as `istioctl
// create-remote-secret` does: each has the label istio/multiCluster=true, a key that is the other cluster's id, and a
// kubeconfig with a token of an account that may read there. The command `fairlead create-remote-secret` calls it.
//
// token.go has the account and its tokens, which are Secrets of the read cluster; Apply puts the result into a cluster
// that reads.
package remotesecret

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/yaml"

	"fairlead.dev/services/installer/internal/kube"
)

const (
	// Label marks the Secrets that name other clusters; its value is "true".
	Label = "istio/multiCluster"
	// clusterAnnotation repeats the id, as in Istio.
	clusterAnnotation = "networking.istio.io/cluster"
	// configSecret and configKey are Istio's names of the Secret of Options.ForConfig.
	configSecret = "istio-kubeconfig"
	configKey    = "config"
	// prefix begins the names of these Secrets.
	prefix = "istio-remote-secret-"
)

// Options of Make.
type Options struct {
	// Name is the id of the cluster; "" is the UID of its namespace kube-system, as in Istio.
	Name string
	// Namespace is that of the account, and of the Secret.
	Namespace string
	// Account is the service account whose token is in the Secret. Create makes it, with the right to read, where there
	// is none.
	Account string
	Create  bool
	// TokenSecret names the token to use; "" takes the newest, and makes one if there is none.
	TokenSecret string
	// Rotate makes a new token.
	Rotate bool
	// ForConfig makes the Secret by which an external control plane reads the configuration of the cluster, in place of
	// one that has the label.
	ForConfig bool
	// Server is the address of the API server for those who read; TLSServerName is the name in its certificate, if that
	// is another.
	Server, TLSServerName string
}

// Made is what Make returns.
type Made struct {
	// Secret is for the clusters that read.
	Secret *corev1.Secret
	// Token is the name of the Secret that the token is in.
	Token    string
	Warnings []string
}

// Make makes the Secret with which others read a cluster, whose account, rights and token it makes if need be.
func Make(ctx context.Context, c Cluster, o Options) (*Made, error) {
	if err := o.complete(ctx, c.API); err != nil {
		return nil, err
	}
	if err := c.account(ctx, o); err != nil {
		return nil, err
	}
	token, err := c.token(ctx, o)
	if err != nil {
		return nil, err
	}
	kubeconfig, err := clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{o.Name: {
			Server: o.Server, TLSServerName: o.TLSServerName, CertificateAuthorityData: token.Data[corev1.ServiceAccountRootCAKey],
		}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{o.Name: {Token: string(token.Data[corev1.ServiceAccountTokenKey])}},
		Contexts:       map[string]*clientcmdapi.Context{o.Name: {Cluster: o.Name, AuthInfo: o.Name}},
		CurrentContext: o.Name,
	})
	if err != nil {
		return nil, err
	}
	made := &Made{Token: token.Name, Secret: &corev1.Secret{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{
			Name: prefix + o.Name, Namespace: o.Namespace, Labels: map[string]string{Label: "true"},
			Annotations: map[string]string{clusterAnnotation: o.Name},
		},
		StringData: map[string]string{o.Name: string(kubeconfig)},
	}}
	if o.ForConfig {
		made.Secret.Name, made.Secret.Labels, made.Secret.StringData = configSecret, nil, map[string]string{configKey: string(kubeconfig)}
	}
	if u, err := url.Parse(o.Server); err == nil && loopback(u.Hostname()) {
		made.Warnings = append(made.Warnings, fmt.Sprintf("the address of the API server is %s, which others cannot "+
			"reach; name the one that they can with --server", o.Server))
	}
	return made, nil
}

// complete checks the options and fills in those that are not given.
func (o *Options) complete(ctx context.Context, api kube.API) error {
	if o.Name == "" {
		system, err := api.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("without --name the id of the cluster is the UID of its namespace kube-system: %w", kube.Explain(err))
		}
		o.Name = string(system.UID)
	}
	if msgs := validation.IsDNS1123Label(o.Name); len(msgs) > 0 {
		return fmt.Errorf("--name %s is no id of a cluster that can name a Secret: %s", o.Name, strings.Join(msgs, "; "))
	}
	if u, err := url.Parse(o.Server); err != nil || u.Host == "" {
		return fmt.Errorf("--server %s is no URL of an API server; write https:// and the address", o.Server)
	} else if u.Scheme != "https" {
		return fmt.Errorf("--server %s is not https: the token would cross the network in the clear; write https:// and the address", o.Server)
	}
	return nil
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback() || host == "localhost"
}

// Manifest is the Secret as YAML, for kubectl apply and delete.
func (m *Made) Manifest() ([]byte, error) {
	text, err := yaml.Marshal(m.Secret)
	if err != nil {
		return nil, err
	}
	return slices.Concat([]byte("# Made by fairlead create-remote-secret. It holds a credential.\n"), text, []byte("---\n")), nil
}

// Apply puts the kubeconfig into a cluster that reads, by one write, so that the cluster is named all the time. An id
// that a Secret has already is replaced there, in the oldest if several have it, which is the one that counts. It
// returns the Secret's name.
func (m *Made) Apply(ctx context.Context, in kube.API) (string, error) {
	secrets := in.CoreV1().Secrets(m.Secret.Namespace)
	if m.Secret.Name == configSecret {
		return configSecret, kube.Explain(m.putConfig(ctx, secrets))
	}
	name := ""
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		var err error
		name, err = m.put(ctx, secrets)
		return err
	})
	return name, kube.Explain(err)
}

// putConfig writes the Secret of Options.ForConfig, in place of an earlier one.
func (m *Made) putConfig(ctx context.Context, secrets typedcorev1.SecretInterface) error {
	_, err := secrets.Create(ctx, m.Secret, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		old, err := secrets.Get(ctx, configSecret, metav1.GetOptions{})
		if err != nil {
			return err
		}
		old.Data = map[string][]byte{configKey: []byte(m.Secret.StringData[configKey])}
		_, err = secrets.Update(ctx, old, metav1.UpdateOptions{})
		return err
	})
}

func (m *Made) put(ctx context.Context, secrets typedcorev1.SecretInterface) (string, error) {
	list, err := secrets.List(ctx, metav1.ListOptions{LabelSelector: Label + "=true"})
	if err != nil {
		return "", err
	}
	slices.SortFunc(list.Items, byAge)
	for i := range list.Items {
		for id := range m.Secret.StringData {
			if old := &list.Items[i]; old.Data[id] != nil {
				old.Data[id] = []byte(m.Secret.StringData[id])
				_, err := secrets.Update(ctx, old, metav1.UpdateOptions{})
				return old.Name, err
			}
		}
	}
	_, err = secrets.Create(ctx, m.Secret, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return "", errors.Join(err, fmt.Errorf("Secret %s/%s has not the label %s=true, or not the key; remove it", m.Secret.Namespace,
			m.Secret.Name, Label))
	}
	return m.Secret.Name, err
}
