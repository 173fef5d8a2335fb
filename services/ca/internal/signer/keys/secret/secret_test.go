package secret

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/clientcmd"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/ca/internal/secretstest"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/keys/keystest"
)

var config = Config{Namespace: "mesh", Name: "ca-keys"}

func TestContract(t *testing.T) {
	api := secretstest.Versioned()
	keystest.Contract(t, keystest.Subject{Open: func(testing.TB) signer.KeyManager { return New(config, api) }, Shared: true})
}

// kubeconfigVariable names the file of an administrator of an API server in which the test may make a namespace.
const kubeconfigVariable = "CA_TEST_KUBECONFIG"

func TestRealAPIServer(t *testing.T) {
	file := os.Getenv(kubeconfigVariable)
	if file == "" {
		t.Skipf("%s names no kubeconfig: run `make test-kube`, whose test TestKeysInASecret sets it", kubeconfigVariable)
	}
	rest, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		t.Fatal(err)
	}
	rest.QPS = -1
	api, err := kubernetes.NewForConfig(rest)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Namespace: fmt.Sprintf("keys-%d", time.Now().UnixNano()), Name: config.Name}
	_, err = New(cfg, api).Make(t.Context(), "root", signer.ECDSAP256)
	if fault(err) != signer.Refused || !strings.Contains(err.Error(), "namespace") {
		t.Errorf("without the namespace: %v", err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: cfg.Namespace}}
	if _, err := api.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	keystest.Contract(t, keystest.Subject{Open: func(testing.TB) signer.KeyManager { return New(cfg, api) }, Shared: true})
	wantLabels(t, api, cfg)

	nobody := *rest
	nobody.Impersonate.UserName = "nobody"
	stranger, err := kubernetes.NewForConfig(&nobody)
	if err != nil {
		t.Fatal(err)
	}
	_, err = New(cfg, stranger).Find(t.Context(), "root")
	if fault(err) != signer.Refused || !strings.Contains(err.Error(), "service account") {
		t.Errorf("without rights: %v", err)
	}
	away := *rest
	away.Host = "https://127.0.0.1:1"
	gone, err := kubernetes.NewForConfig(&away)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(cfg, gone).Find(t.Context(), "root"); fault(err) != signer.Away {
		t.Errorf("without an API server: %v", err)
	}
	immutable, err := api.CoreV1().Secrets(cfg.Namespace).Get(t.Context(), cfg.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	immutable.Immutable = new(true)
	if _, err := api.CoreV1().Secrets(cfg.Namespace).Update(t.Context(), immutable, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = New(cfg, api).Make(t.Context(), "late", signer.ECDSAP256)
	if fault(err) != signer.Refused || !strings.Contains(err.Error(), "immutable") || strings.Contains(err.Error(), "PRIVATE") {
		t.Errorf("in an immutable Secret: %v", err)
	}
}

func fault(err error) signer.Fault {
	if e, ok := errors.AsType[*signer.Error](err); ok {
		return e.Fault
	}
	return 0
}

func wantLabels(t *testing.T, api kubernetes.Interface, cfg Config) {
	t.Helper()
	made, err := api.CoreV1().Secrets(cfg.Namespace).Get(t.Context(), cfg.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if made.Type != corev1.SecretTypeOpaque || made.Labels[contract.ManagedByLabel] != contract.ManagedByCA {
		t.Errorf("type %s, labels %v", made.Type, made.Labels)
	}
}

func object(data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: config.Name, Namespace: config.Namespace,
		Labels: map[string]string{"team": "a"}},
		Type: corev1.SecretTypeOpaque, Data: data}
}

func TestEntriesOfOthersStay(t *testing.T) {
	api := secretstest.Versioned(object(map[string][]byte{"notes": []byte("mine"), "root": []byte("x")}))
	keys := New(config, api)
	if _, err := keys.Make(t.Context(), "root", signer.ECDSAP256); err != nil {
		t.Fatal(err)
	}
	if err := keys.Delete(t.Context(), "root"); err != nil {
		t.Fatal(err)
	}
	found, err := api.CoreV1().Secrets(config.Namespace).Get(t.Context(), config.Name, metav1.GetOptions{})
	if err != nil || len(found.Data) != 2 || string(found.Data["notes"]) != "mine" || found.Labels["team"] != "a" {
		t.Errorf("%v, %v", found, err)
	}
}

func TestFindNamesTheEntry(t *testing.T) {
	for name, text := range map[string]string{"empty": "", "no PEM": "secret", "half": "-----BEGIN PRIVATE KEY-----\nMIGH",
		"damaged": "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n"} {
		keys := New(config, secretstest.Versioned(object(map[string][]byte{"root.pem": []byte(text)})))
		_, err := keys.Find(t.Context(), "root")
		if err == nil || !strings.Contains(err.Error(), "key root.pem of Secret mesh/ca-keys") || !strings.Contains(err.Error(), "restore") ||
			strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := keys.Make(t.Context(), "root", signer.ECDSAP256); !errors.Is(err, signer.ErrKeyExists) {
			t.Errorf("%s: a damaged key was replaced: %v", name, err)
		}
	}
}

func TestSecretIsBounded(t *testing.T) {
	keys := New(config, secretstest.Versioned(object(map[string][]byte{"big": bytes.Repeat([]byte("x"), maxBytes-200)})))
	_, err := keys.Make(t.Context(), "root", signer.ECDSAP256)
	if err == nil || !strings.Contains(err.Error(), "mesh/ca-keys") || !strings.Contains(err.Error(), "remove entries") {
		t.Errorf("got %v", err)
	}
}

func TestForeignType(t *testing.T) {
	foreign := object(nil)
	foreign.Type = corev1.SecretTypeTLS
	for _, err := range []error{
		second(New(config, secretstest.Versioned(foreign)).Find(t.Context(), "root")),
		second(New(config, secretstest.Versioned(foreign)).Make(t.Context(), "root", signer.ECDSAP256)),
		New(config, secretstest.Versioned(foreign)).Delete(t.Context(), "root"),
	} {
		if err == nil || !strings.Contains(err.Error(), "kubernetes.io/tls") || !strings.Contains(err.Error(), "another Secret") {
			t.Errorf("got %v", err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// An API server that fails is told apart by who can mend it, and its words are bounded.
func TestFaults(t *testing.T) {
	resource := secretstest.Resource.GroupResource()
	for name, tc := range map[string]struct {
		err  error
		want signer.Fault
	}{
		"forbidden":    {apierrors.NewForbidden(resource, config.Name, errors.New("no")), signer.Refused},
		"unauthorized": {apierrors.NewUnauthorized("who are you"), signer.Refused},
		"too many":     {apierrors.NewTooManyRequests("slow down", 7), signer.Busy},
		"broken":       {apierrors.NewInternalError(errors.New(strings.Repeat("x", 5000))), signer.Away},
		"unavailable":  {apierrors.NewServiceUnavailable("later"), signer.Away},
		"no answer":    {context.DeadlineExceeded, signer.Away},
		"conflict":     {apierrors.NewConflict(resource, config.Name, errors.New("always")), signer.Away},
	} {
		t.Run(name, func(t *testing.T) {
			api := fake.NewClientset(object(nil))
			calls := 0
			fail := func(k8stesting.Action) (bool, runtime.Object, error) { calls++; return true, nil, tc.err }
			api.PrependReactor("update", "secrets", fail)
			_, err := New(config, api).Make(t.Context(), "root", signer.ECDSAP256)
			if fault(err) != tc.want || !strings.Contains(err.Error(), "Secret mesh/ca-keys") || len(err.Error()) > 1000 {
				t.Errorf("got %v", err)
			}
			if e, ok := errors.AsType[*signer.Error](err); ok && name == "too many" && e.RetryAfter != 7*time.Second {
				t.Errorf("again after %s", e.RetryAfter)
			}
			if want := 1; name != "conflict" && calls != want {
				t.Errorf("%d requests", calls)
			}
		})
	}
}

func TestConfigCheck(t *testing.T) {
	for _, tc := range []struct {
		cfg  Config
		says []string
	}{
		{Config{}, []string{"namespace: is required", "name: is required"}},
		{Config{Namespace: "A", Name: "b/c"}, []string{"namespace: \"A\"", "name: \"b/c\""}},
		{config, nil},
	} {
		err := tc.cfg.Check()
		if (err == nil) != (len(tc.says) == 0) {
			t.Errorf("%+v: %v", tc.cfg, err)
		}
		for _, s := range tc.says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%v lacks %q", err, s)
			}
		}
	}
}
