package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"fairlead.dev/pkg/clusterkeys"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/caapi"
)

// trusting is the ConfigMap of a remote cluster in the ca's namespace.
func trusting(t testing.TB, name string, issuer *testkit.Issuer, minute int, namespaces ...string) *corev1.ConfigMap {
	t.Helper()
	c := clusterkeys.Cluster{Name: name, Issuer: issuer.Name, Keys: testkit.Must(os.ReadFile(issuer.JWKSFile))(t), Namespaces: namespaces}
	return &corev1.ConfigMap{Data: c.Data(), ObjectMeta: metav1.ObjectMeta{Name: "remote-" + name, Namespace: "mesh",
		Labels:            map[string]string{clusterkeys.Label: "true"},
		CreationTimestamp: metav1.NewTime(time.Date(2030, 1, 1, 0, minute, 0, 0, time.UTC))}}
}

// trusted begins with the keys of a cluster, which own has, and reads the ConfigMaps once.
func trusted(t *testing.T, c *cluster, own *testkit.Issuer) *Sync {
	t.Helper()
	c.docs["/openid/v1/jwks"] = string(testkit.Must(os.ReadFile(own.JWKSFile))(t))
	s, _, err := Discover(t.Context(), c.config(t))
	testkit.NoError(t, err)
	s.InitClusters(t.Context())
	return s
}

// inForce are the clusters in the file.
func (s *Sync) inForce(t testing.TB) []string {
	t.Helper()
	names := []string{}
	for _, c := range testkit.Must(clusterkeys.Read(testkit.Must(os.ReadFile(s.cfg.ClustersFile))(t)))(t) {
		names = append(names, strings.TrimSuffix(c.Name+"="+strings.Join(c.Namespaces, ","), "="))
	}
	return names
}

func (s *Sync) states() []string {
	out := []string{}
	for _, r := range s.Clusters().Clusters {
		out = append(out, r.ConfigMap+" "+r.Cluster+" "+r.State)
	}
	return out
}

func other(t testing.TB, kid string) *testkit.Issuer {
	i := testkit.NewIssuer(t)
	i.Rotate(kid)
	return i
}

func TestConfigMapsOfRemoteClustersAreFollowed(t *testing.T) {
	own, east, mid := other(t, "west"), other(t, "east"), other(t, "mid")
	elsewhere := trusting(t, "elsewhere", mid, 1)
	elsewhere.Namespace = "apps"
	unlabelled := trusting(t, "unlabelled", mid, 1)
	unlabelled.Labels = nil
	c := newCluster(t, trusting(t, "east", east, 1, "shop"), elsewhere, unlabelled)
	s := trusted(t, c, own)
	if got := s.inForce(t); !slices.Equal(got, []string{"east=shop"}) { // before anything is served
		t.Fatalf("in force are %q", got)
	}
	s.run(t, s.RunKeys, s.RunClusters)
	c.hasPart(t, "mesh", ClustersKey, `"cluster":"east"`)
	c.hasPart(t, "edge", ClustersKey, `"cluster":"east"`)

	maps := c.CoreV1().ConfigMaps("mesh")
	become := func(what string, want ...string) {
		t.Helper()
		testkit.Eventually(t, testkit.Patience, func() error {
			if got := s.inForce(t); !slices.Equal(got, want) {
				return fmt.Errorf("%s: in force are %q, want %q", what, got, want)
			}
			return nil
		})
	}
	_, err := maps.Create(t.Context(), trusting(t, "mid", mid, 2), metav1.CreateOptions{})
	testkit.NoError(t, err)
	become("another one", "east=shop", "mid")
	c.hasPart(t, "edge", ClustersKey, `"cluster":"mid"`)
	_, err = maps.Update(t.Context(), trusting(t, "east", east, 1, "shop", "pay"), metav1.UpdateOptions{})
	testkit.NoError(t, err)
	become("another rule", "east=shop,pay", "mid")
	broken := trusting(t, "east", east, 1, "bank")
	broken.Data["jwks.json"] = `{"keys":[`
	_, err = maps.Update(t.Context(), broken, metav1.UpdateOptions{})
	testkit.NoError(t, err)
	testkit.Eventually(t, testkit.Patience, func() error {
		page := s.Clusters()
		if i := slices.IndexFunc(page.Clusters, func(r caapi.RemoteCluster) bool { return r.State == caapi.ClusterRefused }); i < 0 ||
			!strings.Contains(page.Clusters[i].Problem, "field jwks.json") || !strings.Contains(page.Clusters[i].Problem, "stays in force") {
			return fmt.Errorf("the broken ConfigMap is not named: %+v", page)
		}
		return nil
	})
	become("a broken one", "east=shop,pay", "mid")
	testkit.NoError(t, maps.Delete(t.Context(), "remote-mid", metav1.DeleteOptions{}))
	become("one gone", "east=shop,pay")

	// A new process has the last good content of a ConfigMap that is broken still.
	c2 := s.cfg
	again, _, err := Discover(t.Context(), c2)
	testkit.NoError(t, err)
	again.InitClusters(t.Context())
	if got := again.inForce(t); !slices.Equal(got, []string{"east=shop,pay"}) {
		t.Errorf("after a restart in force are %q", got)
	}
	testkit.NoError(t, maps.Delete(t.Context(), "remote-east", metav1.DeleteOptions{}))
	become("all gone")
}

// hasPart is has for a part of the value.
func (c *cluster) hasPart(t *testing.T, namespace, key, want string) {
	t.Helper()
	testkit.Eventually(t, testkit.Patience, func() error {
		m, err := c.CoreV1().ConfigMaps(namespace).Get(t.Context(), KeysConfigMap, metav1.GetOptions{})
		if err == nil && !strings.Contains(m.Data[key], want) {
			err = fmt.Errorf("%s has %s: %q", namespace, key, m.Data[key])
		}
		return err
	})
}

func TestWhichRemoteClustersCount(t *testing.T) {
	own, east, mid := other(t, "west"), other(t, "east"), other(t, "mid")
	twin := trusting(t, "east", mid, 9)
	twin.Name = "a-younger-one"
	foreign := trusting(t, "far", other(t, "far"), 3)
	foreign.Data[clusterkeys.TrustDomainKey] = "far.local"
	typo := trusting(t, "typo", other(t, "typo"), 3)
	typo.Data["namespace"] = "shop"
	copied := trusting(t, "copy", east, 4)
	ours := trusting(t, "ours", own, 5)
	nomad := trusting(t, "nomad", other(t, "nomad"), 3, "shop")
	nomad.Data[clusterkeys.NomadKey] = "- {namespace: default, job: web, task: server, account: shop/web}"
	delete(nomad.Data, clusterkeys.IssuerKey)
	noRule := nomad.DeepCopy()
	noRule.Data[clusterkeys.NomadKey] = "- {namespace: default, job: web, account: shop/web}"
	for name, tc := range map[string]struct {
		maps            []runtime.Object
		inForce, states []string
		problem         string
	}{
		"of two for one cluster the older": {[]runtime.Object{twin, trusting(t, "east", east, 1)}, []string{"east"},
			[]string{"mesh/remote-east east trusted", "mesh/a-younger-one east ignored"}, "remove one of them"},
		"one of another trust domain not": {[]runtime.Object{foreign}, []string{}, []string{"mesh/remote-far far refused"},
			"far.local is not the mesh's"},
		"one with a misspelt rule not": {[]runtime.Object{typo}, []string{}, []string{"mesh/remote-typo typo refused"},
			`"namespace" is not known`},
		"those with one key for nobody": {[]runtime.Object{trusting(t, "east", east, 1), copied}, []string{"east", "copy"},
			[]string{"mesh/remote-east east shared_key", "mesh/remote-copy copy shared_key"}, "east and copy have the same key"},
		"one of Nomad with its rules": {[]runtime.Object{nomad}, []string{"nomad=shop"}, []string{"mesh/remote-nomad nomad trusted"}, ""},
		"one of Nomad with a wrong rule not": {[]runtime.Object{noRule}, []string{}, []string{"mesh/remote-nomad nomad refused"},
			"field nomad.yaml: rule 1: task is empty"},
		"one with the own key for the own cluster": {[]runtime.Object{ours}, []string{"ours"}, []string{"mesh/remote-ours ours shared_key"},
			"the own cluster and ours have the same key (SHA-256 "},
	} {
		t.Run(name, func(t *testing.T) {
			s := trusted(t, newCluster(t, tc.maps...), own)
			if got := s.inForce(t); !slices.Equal(got, tc.inForce) {
				t.Errorf("in force are %q, want %q", got, tc.inForce)
			}
			if got := s.states(); !slices.Equal(got, tc.states) {
				t.Errorf("states are %q, want %q", got, tc.states)
			}
			if page := s.Clusters(); !strings.Contains(fmt.Sprint(page), tc.problem) {
				t.Errorf("no %q in %+v", tc.problem, page)
			}
		})
	}
}

// Without the right to read them the clusters of the last run stay, and the own one goes on.
func TestConfigMapsThatCannotBeReadRemoveNothing(t *testing.T) {
	own, east := other(t, "west"), other(t, "east")
	c := newCluster(t, trusting(t, "east", east, 1))
	trusted(t, c, own)
	forbidden := true
	c.PrependReactor("list", "configmaps", func(k8stesting.Action) (bool, runtime.Object, error) {
		if forbidden {
			return true, nil, errors.New("forbidden")
		}
		return false, nil, nil
	})
	s := trusted(t, c, own)
	if got := s.inForce(t); !slices.Equal(got, []string{"east"}) {
		t.Errorf("in force are %q", got)
	}
	if page := s.Clusters(); !strings.Contains(page.Unread, "forbidden") {
		t.Errorf("the page says %+v", page)
	}
	forbidden = false
	s.run(t, s.RunClusters, func(ctx context.Context) error { return s.RunKeys(ctx) })
	testkit.Eventually(t, testkit.Patience, func() error {
		if page := s.Clusters(); page.Unread != "" || len(page.Clusters) != 1 {
			return fmt.Errorf("the page says %+v", page)
		}
		return nil
	})
}
