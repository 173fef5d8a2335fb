// Package kube joins the ca to the Kubernetes cluster that it runs in, so that a mesh needs nothing made by hand. It
// reads the keys and the issuer of service account tokens from the API server, those of remote clusters from
// ConfigMaps, and keeps two ConfigMaps: fairlead-jwks in the services' namespaces, from which they verify tokens, and
// one with the roots in every namespace, from which workloads verify the mesh. It tells who in the cluster has not got
// the roots yet.
package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fileio"
	"fairlead.dev/proto/fairlead/contract"
)

// Names of what Sync keeps.
const (
	RootKey       = "root-cert.pem"
	KeysConfigMap = "fairlead-jwks"
	KeysKey       = "jwks.json"
	IssuerKey     = "issuer"
)

const (
	// maxDocument bounds what the API server says about its tokens.
	maxDocument = 1 << 20
	// keysPeriod is the time between two readings of the keys. A cluster that rotates them signs with a new key only
	// after it has published it for longer than that.
	keysPeriod = time.Minute
	// requestTimeout bounds one request, and discoverTimeout all that Discover tries.
	requestTimeout  = 10 * time.Second
	discoverTimeout = 30 * time.Second
)

// Config of a Sync. All fields are required.
type Config struct {
	API kubernetes.Interface
	// Raw gets a document of the API server by its path.
	Raw func(ctx context.Context, path string) ([]byte, error)
	// Namespaces are those that get the keys.
	Namespaces []string
	// KeysFile gets the keys that verify service account tokens.
	KeysFile string
	// Namespace has the ConfigMaps of remote clusters, and ClustersFile gets what they say (package clusterkeys).
	Namespace, ClustersFile string
	// TrustDomain of the mesh.
	TrustDomain spiffeid.TrustDomain
	// RootConfigMap is the name of the ConfigMap with the roots, contract.RootConfigMap by default.
	RootConfigMap string
	// Roots returns the trust bundle in PEM, and a channel that is closed when another one replaces it.
	Roots func() (pem string, changed <-chan struct{})
	Clock clock.Clock
	Log   *slog.Logger
}

// Cluster has the clients of an API server.
type Cluster struct {
	// Config is that of further clients.
	Config *rest.Config
	API    kubernetes.Interface
	// Raw gets a document by its path.
	Raw func(ctx context.Context, path string) ([]byte, error)
	// Metadata and Dynamic read metadata of objects, and objects of kinds that client-go does not know. They wait for
	// no other client's requests.
	Metadata metadata.Interface
	Dynamic  dynamic.Interface
}

// Requests a second to the API server of the clients that watch, and ask what watches do not know.
const (
	apiQPS   = 50
	apiBurst = 100
)

// InCluster returns the clients of the cluster that this process's Pod runs in.
func InCluster() (*Cluster, error) {
	config, err := rest.InClusterConfig()
	if err != nil {
		return nil, fmt.Errorf("--kubernetes: %w; it needs a Pod with a token of its service account, or --kubeconfig", err)
	}
	return Connect(config)
}

// ByKubeconfig returns the clients of the cluster that a context of a kubeconfig names, "" being the current one.
func ByKubeconfig(file, context string) (*Cluster, error) {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(&clientcmd.ClientConfigLoadingRules{ExplicitPath: file},
		&clientcmd.ConfigOverrides{CurrentContext: context}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig %s: %w", file, err)
	}
	return Connect(config)
}

// Connect returns the clients of an API server.
func Connect(config *rest.Config) (*Cluster, error) {
	config = rest.CopyConfig(config)
	config.Timeout = 0 // watches are long; each request has a deadline of its own
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("--kubernetes: %w", err)
	}
	config.QPS, config.Burst = apiQPS, apiBurst
	c := &Cluster{API: api, Config: rest.CopyConfig(config)}
	if c.Metadata, err = metadata.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("--kubernetes: %w", err)
	}
	if c.Dynamic, err = dynamic.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("--kubernetes: %w", err)
	}
	c.Raw = func(ctx context.Context, path string) ([]byte, error) {
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		text, err := api.RESTClient().Get().AbsPath(path).DoRaw(ctx)
		if err == nil && len(text) > maxDocument {
			err = fmt.Errorf("the answer is longer than %d bytes", maxDocument)
		}
		return text, err
	}
	return c, nil
}

// Sync keeps the file of keys and the ConfigMaps.
type Sync struct {
	cfg    Config
	issuer string
	keys   []byte
	seen   seen

	clusters clusters
}

// Discover reads issuer and keys of service account tokens, and writes the file of keys. The ca calls it before it
// verifies tokens. It tries again for a while, because a network may come a moment after its Pod.
func Discover(ctx context.Context, cfg Config) (_ *Sync, issuer string, err error) {
	s := &Sync{cfg: cfg, clusters: clusters{changed: make(chan struct{}, 1)}}
	deadline := cfg.Clock.Now().Add(discoverTimeout)
	for {
		if err = s.readKeys(ctx); err == nil {
			return s, s.issuer, nil
		}
		if !cfg.Clock.Now().Before(deadline) {
			return nil, "", fmt.Errorf("keys of service account tokens: %w", err)
		}
		if !clock.Sleep(ctx, cfg.Clock, time.Second) {
			return nil, "", ctx.Err()
		}
	}
}

// readKeys reads issuer and keys, and writes the file if they have changed. The issuer of a cluster does not change
// while it runs.
func (s *Sync) readKeys(ctx context.Context) error {
	if s.issuer == "" {
		text, err := s.cfg.Raw(ctx, "/.well-known/openid-configuration")
		if err != nil {
			return fmt.Errorf("/.well-known/openid-configuration of the API server: %w", err)
		}
		var about struct {
			Issuer string `json:"issuer"`
		}
		if err := json.Unmarshal(text, &about); err != nil || about.Issuer == "" {
			return fmt.Errorf("/.well-known/openid-configuration of the API server names no issuer")
		}
		s.issuer = about.Issuer
	}
	keys, err := s.cfg.Raw(ctx, "/openid/v1/jwks")
	if err != nil {
		return fmt.Errorf("/openid/v1/jwks of the API server: %w", err)
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(keys, &set); err != nil || len(set.Keys) == 0 {
		return fmt.Errorf("/openid/v1/jwks of the API server has no keys")
	}
	if string(keys) == string(s.keys) {
		return nil
	}
	if err := fileio.Write(s.cfg.KeysFile, keys, 0o600); err != nil {
		return err
	}
	s.keys = keys
	s.cfg.Log.Info("keys of service account tokens read", "issuer", s.issuer, "keys", len(set.Keys))
	return nil
}

// RunKeys keeps the file and ConfigMap fairlead-jwks until ctx ends. It logs each error once, when it first occurs.
func (s *Sync) RunKeys(ctx context.Context) error {
	said := ""
	for {
		err := s.readKeys(ctx)
		if err == nil {
			var errs []error
			data := map[string]string{KeysKey: string(s.keys), IssuerKey: s.issuer}
			if document := s.clusterDocument(); document != "" {
				data[ClustersKey] = document
			}
			for _, namespace := range s.cfg.Namespaces {
				errs = append(errs, keep(ctx, s.cfg.API, namespace, KeysConfigMap, data))
			}
			err = errors.Join(errs...)
		}
		wait := keysPeriod
		switch {
		case err == nil:
			said = ""
		case ctx.Err() == nil && err.Error() != said:
			said = err.Error()
			s.cfg.Log.Error("ConfigMap "+KeysConfigMap+" not updated, the last one stays", "error", err)
			fallthrough
		default:
			wait = retryPeriod
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.clusters.changed:
		case <-s.cfg.Clock.After(wait):
		}
	}
}

// keep makes a ConfigMap have these entries. Others that it has, and its labels, stay.
func keep(ctx context.Context, api kubernetes.Interface, namespace, name string, data map[string]string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	client := api.CoreV1().ConfigMaps(namespace)
	found, err := client.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		labels := map[string]string{"istio.io/config": "true", contract.ManagedByLabel: contract.ManagedByCA}
		_, err = client.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: labels}, Data: data,
		}, metav1.CreateOptions{FieldManager: contract.ManagedByCA})
		return describe(err, namespace, name)
	}
	if err != nil {
		return describe(err, namespace, name)
	}
	merged := map[string]string{}
	maps.Copy(merged, found.Data)
	maps.Copy(merged, data)
	if maps.Equal(merged, found.Data) {
		return nil
	}
	found.Data = merged
	_, err = client.Update(ctx, found, metav1.UpdateOptions{FieldManager: contract.ManagedByCA})
	return describe(err, namespace, name)
}

func describe(err error, namespace, name string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("ConfigMap %s/%s: %w", namespace, name, err)
}
