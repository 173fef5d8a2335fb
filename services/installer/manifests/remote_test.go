package manifests_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"fairlead.dev/services/installer/internal/install"
	"fairlead.dev/services/installer/internal/install/tree"
)

// primaryRemote is an IstioOperator as Istio's guide of primary-remote writes it, with what a case says of the
// injector.
func primaryRemote(t *testing.T, profile, injector string) []runtime.Object {
	t.Helper()
	return renderedSpec(t, open(t), "apiVersion: install.istio.io/v1alpha1\nkind: IstioOperator\nspec: {"+profile+
		"values: {istiodRemote: {"+injector+"}, global: {remotePilotAddress: 192.0.2.1}}}\n")
}

// deployments are the names of what runs.
func deployments(objects []runtime.Object) []string {
	var names []string
	for _, o := range objects {
		if d, ok := o.(*appsv1.Deployment); ok {
			names = append(names, d.Name)
		}
	}
	slices.Sort(names)
	return names
}

func callers(t *testing.T, objects []runtime.Object) []registrationv1.WebhookClientConfig {
	t.Helper()
	var out []registrationv1.WebhookClientConfig
	for _, w := range find[*registrationv1.MutatingWebhookConfiguration](t, objects, "istio-sidecar-injector").Webhooks {
		out = append(out, w.ClientConfig)
	}
	if len(out) != 4 {
		t.Fatalf("%d webhooks", len(out))
	}
	return out
}

func flagsOf(t *testing.T, objects []runtime.Object, name string) []string {
	t.Helper()
	return find[*appsv1.Deployment](t, objects, name).Spec.Template.Spec.Containers[0].Args
}

// TestARemoteClusterHasItsOwnInjector, whose certificate the ca of the primary gives: xds-server answers for the ca at
// the address that Service istiod leads to.
func TestARemoteClusterHasItsOwnInjector(t *testing.T) {
	const istiod = "istiod.istio-system.svc:15012"
	for name, profile := range map[string]string{"a profile": "profile: remote, ", "a value": "", "a switch": "profile: minimal, "} {
		objects := primaryRemote(t, profile, "")
		switch name {
		case "a switch":
			objects = primaryRemote(t, profile, "enabled: true")
		case "a value":
			objects = renderedSpec(t, open(t), "apiVersion: install.istio.io/v1alpha1\nkind: IstioOperator\n"+
				"spec: {values: {profile: remote, global: {remotePilotAddress: 192.0.2.1}}}\n")
		}
		if got := deployments(objects); !slices.Equal(got, []string{"injector", "keeper"}) {
			t.Errorf("%s: %v run", name, got)
		}
		for _, c := range callers(t, objects) {
			if s := c.Service; s == nil || s.Name != "injector" || s.Namespace != "fairlead-remote" || *s.Path != "/inject" {
				t.Errorf("%s: API servers call %+v", name, c)
			}
		}
		flags := flagsOf(t, objects, "injector")
		for _, want := range []string{"--ca-address=" + istiod, "--ca-identity=istio-system/xds-server", "--identity=fairlead-remote/injector",
			"--signer-identity=istio-system/ca"} {
			if !slices.Contains(flags, want) {
				t.Errorf("%s: the injector has no flag %s", name, want)
			}
		}
		flags = flagsOf(t, objects, "keeper")
		for _, want := range []string{"--publish-roots=istio-ca-root-cert", "--injection=istio-sidecar-injector",
			"--first-roots=istio-system/fairlead-remote-roots", "--xds-address=" + istiod, "--xds-identity=istio-system/xds-server",
			"--ca-identity=istio-system/ca", "--identity=fairlead-remote/keeper"} {
			if !slices.Contains(flags, want) {
				t.Errorf("%s: the keeper has no flag %s in %v", name, want, flags)
			}
		}
		var mesh struct {
			DefaultConfig struct {
				DiscoveryAddress string            `json:"discoveryAddress"`
				ProxyMetadata    map[string]string `json:"proxyMetadata"`
			} `json:"defaultConfig"`
		}
		if err := yaml.Unmarshal([]byte(find[*corev1.ConfigMap](t, objects, "istio").Data["mesh"]), &mesh); err != nil ||
			mesh.DefaultConfig.DiscoveryAddress != istiod || mesh.DefaultConfig.ProxyMetadata["CA_ADDR"] != istiod {
			t.Errorf("%s: proxies are told %+v, %v", name, mesh, err)
		}
		service, slice := find[*corev1.Service](t, objects, "istiod"), find[*discoveryv1.EndpointSlice](t, objects, "istiod")
		ports := map[string]int32{}
		for _, p := range slice.Ports {
			ports[*p.Name] = *p.Port
		}
		if len(service.Spec.Ports) != 2 || service.Spec.ClusterIP != "" || ports["https-dns"] != 15012 || ports["https-webhook"] != 15017 ||
			slice.Endpoints[0].Addresses[0] != "192.0.2.1" {
			t.Errorf("%s: Service istiod %+v leads to %v %v", name, service.Spec, slice.Endpoints, ports)
		}
	}
	// The ca of the primary writes the name into the certificate, by which the API server verifies the webhook.
	primary, err := decode(text(t, withoutCRDs(generate(t, open(t), "minimal", nil).Objects)))
	if err != nil {
		t.Fatal(err)
	}
	names := strings.Join(flagsOf(t, primary, "ca"), "\n")
	for _, want := range []string{"--remote-dns-names=fairlead-remote/injector=injector.fairlead-remote.svc,",
		"--dns-names=istio-system/injector=injector.istio-system.svc,injector.istio-system.svc.cluster.local,istiod.istio-system.svc,"} {
		if !strings.Contains(names, want) {
			t.Errorf("the ca has no flag %s in\n%s", want, names)
		}
	}
}

// TestGatewaysOfARemoteCluster are where the ca gives them an identity, whether they are installed with the rest or
// beside it, by Istio's script, with the values that the rest has.
func TestGatewaysOfARemoteCluster(t *testing.T) {
	written := func(text string) string {
		file := filepath.Join(t.TempDir(), "operator.yaml")
		if err := os.WriteFile(file, []byte("apiVersion: install.istio.io/v1alpha1\nkind: IstioOperator\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	for _, name := range []string{"remote", "external"} {
		global := tree.GetMap(generate(t, open(t), name, nil).Merged.Spec, "values", "global")
		common, err := tree.Text(tree.Map{"spec": tree.Map{"values": tree.Map{"global": global}}})
		if err != nil {
			t.Fatal(err)
		}
		for what, c := range map[string]*install.Result{
			"with the rest": generate(t, open(t), name, []string{written("spec: {components: {ingressGateways: [{name: gw, enabled: true}]}}\n")}),
			"beside it":     generate(t, open(t), "", []string{written(string(common)), written(eastWest[strings.Index(eastWest, "metadata:"):])}),
		} {
			found := false
			for _, in := range c.Components {
				found = found || in.List
				if in.List && in.Namespace != "fairlead-remote" {
					t.Errorf("%s, %s: %s is in namespace %s", name, what, in.Label, in.Namespace)
				}
			}
			if !found {
				t.Errorf("%s, %s: there is no gateway", name, what)
			}
		}
	}
	for _, in := range generate(t, open(t), "default", nil).Components {
		if in.List && in.Namespace != "istio-system" {
			t.Errorf("profile default: %s is in namespace %s", in.Label, in.Namespace)
		}
	}
}

// TestTheKeeperComesBeforeTheInjector, because the installation waits for one component after the other, and in a
// remote cluster the injector's Pods mount the ConfigMap that the keeper writes.
func TestTheKeeperComesBeforeTheInjector(t *testing.T) {
	var names []string
	for _, c := range open(t).Components {
		names = append(names, c.Name)
	}
	keeper, injector := slices.Index(names, "keeper"), slices.Index(names, "injector")
	if keeper < 0 || injector < keeper {
		t.Errorf("components are installed in the order %v", names)
	}
}

// TestARemoteClusterMayUseThePrimarysInjector, as Istio's guide has it, by a path or an address.
func TestARemoteClusterMayUseThePrimarysInjector(t *testing.T) {
	byPath := primaryRemote(t, "profile: remote, ", "injectionPath: /inject/cluster/east/net/n2")
	for _, c := range callers(t, byPath) {
		if s := c.Service; s == nil || s.Name != "istiod" || s.Namespace != "istio-system" || *s.Port != 443 ||
			*s.Path != "/inject/cluster/east/net/n2" {
			t.Errorf("API servers call %+v", c)
		}
	}
	byURL := primaryRemote(t, "profile: remote, ", "injectionURL: 'https://istiod.example.com:15017/inject/cluster/east/net/n2', "+
		"injectionCABundle: eA==")
	for _, c := range callers(t, byURL) {
		if c.Service != nil || c.URL == nil || *c.URL != "https://istiod.example.com:15017/inject/cluster/east/net/n2" || string(c.CABundle) != "x" {
			t.Errorf("API servers call %+v", c)
		}
	}
	for name, objects := range map[string][]runtime.Object{"a path": byPath, "an address": byURL} {
		if got := deployments(objects); !slices.Equal(got, []string{"keeper"}) {
			t.Errorf("%s: %v run", name, got)
		}
		keeps := slices.Contains(flagsOf(t, objects, "keeper"), "--injection=istio-sidecar-injector")
		if keeps != (name == "a path") {
			t.Errorf("%s: the keeper writes caBundle: %v", name, keeps)
		}
	}
}
