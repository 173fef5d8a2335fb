package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/ca/internal/kube"
)

// clusterOf is a cluster with these objects, whose API server has the keys of the issuer.
func clusterOf(t *testing.T, api kubernetes.Interface, issuer *testkit.Issuer) connect {
	t.Helper()
	keys := testkit.Must(os.ReadFile(issuer.JWKSFile))(t)
	return func() (*kube.Cluster, error) {
		scheme := runtime.NewScheme()
		_ = metav1.AddMetaToScheme(scheme)
		bans := map[schema.GroupVersionResource]string{{Group: "fairlead.dev", Version: "v1", Resource: "identitybans"}: "IdentityBanList"}
		return &kube.Cluster{API: api, Metadata: metadatafake.NewSimpleMetadataClient(scheme),
			Dynamic: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(scheme, bans), Raw: func(_ context.Context, path string) ([]byte, error) {
				switch path {
				case "/.well-known/openid-configuration":
					return fmt.Appendf(nil, `{"issuer":%q}`, issuer.Name), nil
				case "/openid/v1/jwks":
					return keys, nil
				}
				return nil, errors.New("not found")
			}}, nil
	}
}

// TestAClusterGivesKeysAndGetsTheRoot holds what --kubernetes does: keys and issuer of tokens come from the API server,
// also those of /debug, and the ConfigMaps of the other services and of workloads appear.
func TestAClusterGivesKeysAndGetsTheRoot(t *testing.T) {
	issuer := testkit.NewIssuer(t)
	api := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "apps"}})
	o := defaults(t, issuer)
	o.Kubernetes, o.JWKSFile, o.Issuer, o.AdminJWKSFile = true, "", "", ""
	h := startIn(t, issuer, o, deps{Cluster: clusterOf(t, api, issuer)})

	has := func(namespace, name, key, want string) {
		t.Helper()
		testkit.Eventually(t, testkit.Patience, func() error {
			m, err := api.CoreV1().ConfigMaps(namespace).Get(t.Context(), name, metav1.GetOptions{})
			if err == nil && !strings.Contains(m.Data[key], want) {
				err = fmt.Errorf("%s is %q", key, m.Data[key])
			}
			return err
		})
	}
	has("apps", contract.RootConfigMap, kube.RootKey, "-----BEGIN CERTIFICATE-----")
	has(contract.SystemNamespace, kube.KeysConfigMap, kube.IssuerKey, issuer.Name)
	if code := h.get("/debug/bundle", issuer.Token(contract.SystemNamespace, contract.AdminAccount, contract.AdminAudience),
		nil); code != http.StatusOK {
		t.Errorf("/debug/bundle with an administrator's token: HTTP %d", code)
	}
}

// TestFlagsOfAClusterExcludeOthers holds what is said of flags that have no effect.
func TestFlagsOfAClusterExcludeOthers(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"an issuer":         {func(o *Options) { o.Kubernetes = true }, "--issuer: excludes --kubernetes"},
		"roots without one": {func(o *Options) { o.RootConfigMap = "roots" }, "--root-configmap: has no effect without --kubernetes"},
		"a name that is none": {func(o *Options) { o.Kubernetes, o.RootConfigMap = true, "Roots" },
			`--root-configmap: "Roots" is no name that a ConfigMap of roots can have`},
		"the name of another":            {func(o *Options) { o.Kubernetes, o.RootConfigMap = true, kube.KeysConfigMap }, "--root-configmap"},
		"namespaces of keys":             {func(o *Options) { o.KeysNamespaces = []string{"a"} }, "--keys-namespaces: has no effect without --kubernetes"},
		"a kubeconfig without a cluster": {func(o *Options) { o.Kubeconfig = "/a" }, "--kubeconfig: has no effect without --kubernetes"},
		"a context alone": {func(o *Options) { o.Kubernetes, o.Issuer, o.JWKSFile, o.KubeContext = true, "", "", "east" },
			"--kube-context: needs --kubeconfig"},
		"no keys": {func(o *Options) { o.JWKSFile = "" }, "--jwks-file: is required"},
		"no Pod of a cluster": {func(o *Options) { o.Kubernetes, o.Issuer, o.JWKSFile, o.AdminJWKSFile = true, "", "", "" },
			"it needs a Pod with a token of its service account"},
	} {
		t.Run(name, func(t *testing.T) {
			o := defaults(t, testkit.NewIssuer(t))
			tc.change(&o)
			_, err := o.check()
			if err == nil {
				_, err = kube.InCluster()
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

// TestAKubeconfigNamesTheCluster holds what --kubeconfig and --kube-context mean.
func TestAKubeconfigNamesTheCluster(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	testkit.WriteFile(t, file, []byte(`{apiVersion: v1, kind: Config, current-context: west,
clusters: [{name: west, cluster: {server: "https://127.0.0.1:1"}}, {name: east, cluster: {server: "https://127.0.0.1:2"}}],
contexts: [{name: west, context: {cluster: west}}, {name: east, context: {cluster: east}}]}`))
	for context, want := range map[string]string{"": "https://127.0.0.1:1", "east": "https://127.0.0.1:2"} {
		cluster, err := connectBy(&Options{Kubeconfig: file, KubeContext: context})()
		if err != nil || cluster.Config.Host != want {
			t.Errorf("context %q: %+v, %v", context, cluster, err)
		}
	}
	if _, err := connectBy(&Options{Kubeconfig: file, KubeContext: "north"})(); err == nil || !strings.Contains(err.Error(), file) ||
		!strings.Contains(err.Error(), "north") {
		t.Errorf("a context that is not there: %v", err)
	}
}
