package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/notify"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/contract"
)

// cluster is an API server in this process, and a bundle that changes.
type cluster struct {
	*fake.Clientset
	mu      sync.Mutex
	docs    map[string]string
	pem     string
	changed notify.Notifier
	file    string
}

func newCluster(t *testing.T, objects ...runtime.Object) *cluster {
	t.Helper()
	return &cluster{Clientset: fake.NewClientset(objects...), pem: "first", file: filepath.Join(t.TempDir(), "jwks.json"),
		docs: map[string]string{
			"/.well-known/openid-configuration": `{"issuer":"https://issuer"}`, "/openid/v1/jwks": `{"keys":[{"kid":"a"}]}`,
		}}
}

func (c *cluster) raw(_ context.Context, path string) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if text, ok := c.docs[path]; ok {
		return []byte(text), nil
	}
	return nil, errors.New("not found")
}

func (c *cluster) roots() (string, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pem, c.changed.Changed()
}

func (c *cluster) config(t *testing.T) Config {
	return Config{API: c, Raw: c.raw, Namespaces: []string{"mesh", "edge"},
		KeysFile: c.file, Namespace: "mesh", ClustersFile: filepath.Join(filepath.Dir(c.file), ClustersKey),
		TrustDomain: spiffeid.RequireTrustDomainFromString("cluster.local"), RootConfigMap: contract.RootConfigMap,
		Roots: c.roots, Clock: clock.Real(), Log: testkit.Logger(t)}
}

func (c *cluster) start(t *testing.T) {
	t.Helper()
	s, issuer, err := Discover(t.Context(), c.config(t))
	if err != nil || issuer != "https://issuer" {
		t.Fatalf("issuer %q, %v", issuer, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = s.RunKeys(ctx) })
	running.Go(func() { _ = s.RunRoots(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
}

// has waits until an entry of a ConfigMap has a value.
func (c *cluster) has(t *testing.T, namespace, name, key, want string) {
	t.Helper()
	testkit.Eventually(t, testkit.Patience, func() error {
		m, err := c.CoreV1().ConfigMaps(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && m.Data[key] != want {
			err = fmt.Errorf("ConfigMap %s/%s has %s: %q, want %q", namespace, name, key, m.Data[key], want)
		}
		return err
	})
}

func namespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func TestEveryNamespaceHasTheRoot(t *testing.T) {
	gone := namespace("gone")
	gone.Status.Phase = corev1.NamespaceTerminating
	c := newCluster(t, namespace("mesh"), namespace("apps"), namespace("kube-system"), gone, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: contract.RootConfigMap, Namespace: "apps"},
		Data:       map[string]string{RootKey: "older", "other": "stays"},
	})
	c.start(t)
	for _, ns := range []string{"mesh", "apps"} {
		c.has(t, ns, contract.RootConfigMap, RootKey, "first")
	}
	c.has(t, "apps", contract.RootConfigMap, "other", "stays")

	t.Run("that comes later", func(t *testing.T) {
		if _, err := c.CoreV1().Namespaces().Create(t.Context(), namespace("later"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.has(t, "later", contract.RootConfigMap, RootKey, "first")
	})
	t.Run("where it was deleted", func(t *testing.T) {
		if err := c.CoreV1().ConfigMaps("apps").Delete(t.Context(), contract.RootConfigMap, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		c.has(t, "apps", contract.RootConfigMap, RootKey, "first")
	})
	t.Run("after the bundle has changed", func(t *testing.T) {
		c.mu.Lock()
		c.pem = "second"
		c.changed.Notify()
		c.mu.Unlock()
		for _, ns := range []string{"mesh", "apps", "later"} {
			c.has(t, ns, contract.RootConfigMap, RootKey, "second")
		}
	})
	for _, ns := range []string{"kube-system", "gone"} {
		if _, err := c.CoreV1().ConfigMaps(ns).Get(t.Context(), contract.RootConfigMap, metav1.GetOptions{}); err == nil {
			t.Errorf("namespace %s has a root", ns)
		}
	}
}

// A refused write is tried again, and does not hold up other namespaces.
func TestRefusedWritesAreTriedAgain(t *testing.T) {
	c := newCluster(t, namespace("a"), namespace("b"))
	var refused sync.Once
	c.PrependReactor("create", "configmaps", func(a k8stesting.Action) (handled bool, _ runtime.Object, err error) {
		if a.GetNamespace() == "a" {
			refused.Do(func() { handled, err = true, errors.New("quota") })
		}
		return handled, nil, err
	})
	c.start(t)
	c.has(t, "b", contract.RootConfigMap, RootKey, "first")
	c.has(t, "a", contract.RootConfigMap, RootKey, "first")
}

func TestTheOtherServicesGetKeysAndIssuer(t *testing.T) {
	c := newCluster(t)
	c.start(t)
	c.has(t, "mesh", KeysConfigMap, KeysKey, `{"keys":[{"kid":"a"}]}`)
	c.has(t, "mesh", KeysConfigMap, IssuerKey, "https://issuer")
	c.has(t, "edge", KeysConfigMap, IssuerKey, "https://issuer")
	if text, err := os.ReadFile(c.file); err != nil || string(text) != `{"keys":[{"kid":"a"}]}` {
		t.Errorf("file %q, %v", text, err)
	}
}

// Keys that rotate reach the file and the ConfigMap; an answer without keys changes neither.
func TestKeysFollowTheCluster(t *testing.T) {
	c := newCluster(t)
	s, _, err := Discover(t.Context(), c.config(t))
	if err != nil {
		t.Fatal(err)
	}
	c.docs["/openid/v1/jwks"] = `{"keys":[]}`
	if err := s.readKeys(t.Context()); err == nil || string(s.keys) != `{"keys":[{"kid":"a"}]}` {
		t.Errorf("keys %s, error %v", s.keys, err)
	}
	c.docs["/openid/v1/jwks"] = `{"keys":[{"kid":"b"}]}`
	if err := s.readKeys(t.Context()); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(c.file); err != nil || string(text) != `{"keys":[{"kid":"b"}]}` {
		t.Errorf("file %q, %v", text, err)
	}
}

func TestDiscoverySaysWhatIsMissing(t *testing.T) {
	c := newCluster(t)
	delete(c.docs, "/openid/v1/jwks")
	cfg := c.config(t)
	times := testkit.NewClock(time.Now())
	cfg.Clock = times
	done := make(chan error, 1)
	go func() {
		_, _, err := Discover(t.Context(), cfg)
		done <- err
	}()
	testkit.Eventually(t, testkit.Patience, func() error {
		times.Advance(discoverTimeout)
		select {
		case err := <-done:
			if err == nil || err.Error() != "keys of service account tokens: /openid/v1/jwks of the API server: not found" {
				t.Errorf("error %v", err)
			}
			return nil
		default:
			return errors.New("it still waits")
		}
	})
}
