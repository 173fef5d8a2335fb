package deploy

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"

	"fairlead.dev/proto/fairlead/contract"
)

func TestEveryObjectIsKnownToKubernetes(t *testing.T) {
	var kinds []string
	for _, o := range mesh(t) {
		accessor, err := meta.Accessor(o)
		if err != nil {
			t.Fatal(err)
		}
		kind := o.GetObjectKind().GroupVersionKind().Kind
		kinds = append(kinds, kind+"/"+accessor.GetName())
		clusterWide := kind == "Namespace" || strings.HasSuffix(kind, "WebhookConfiguration") || strings.HasPrefix(kind, "ClusterRole") ||
			strings.HasPrefix(kind, "ValidatingAdmissionPolicy")
		if clusterWide != (accessor.GetNamespace() == "") || (!clusterWide && accessor.GetNamespace() != namespace) {
			t.Errorf("%s %s is in namespace %q", kind, accessor.GetName(), accessor.GetNamespace())
		}
		if accessor.GetLabels()["app.kubernetes.io/part-of"] != "fairlead" {
			t.Errorf("%s %s does not say that it is part of fairlead", kind, accessor.GetName())
		}
	}
	slices.Sort(kinds)
	want := []string{
		"ClusterRole/fairlead-ca", "ClusterRole/fairlead-config-watcher", "ClusterRole/fairlead-config-watcher-credentials",
		"ClusterRole/fairlead-config-watcher-registration",
		"ClusterRole/fairlead-config-watcher-webhook", "ClusterRole/fairlead-gateways", "ClusterRole/fairlead-injector", "ClusterRole/fairlead-keeper",
		"ClusterRoleBinding/fairlead-ca", "ClusterRoleBinding/fairlead-config-watcher",
		"ClusterRoleBinding/fairlead-config-watcher-webhook", "ClusterRoleBinding/fairlead-gateways",
		"ClusterRoleBinding/fairlead-injector", "ClusterRoleBinding/fairlead-keeper",
		"ConfigMap/fairlead-gateways", "ConfigMap/istio", "ConfigMap/istio-sidecar-injector",
		"Deployment/ca", "Deployment/config-watcher", "Deployment/gateways", "Deployment/injector", "Deployment/keeper", "Deployment/xds-server",
		"MutatingWebhookConfiguration/istio-sidecar-injector",
		"Namespace/istio-system", "NetworkPolicy/ca", "NetworkPolicy/config-watcher", "NetworkPolicy/gateways",
		"NetworkPolicy/injector", "NetworkPolicy/keeper",
		"NetworkPolicy/xds-server", "PersistentVolumeClaim/ca-root",
		"PodDisruptionBudget/ca", "PodDisruptionBudget/config-watcher", "PodDisruptionBudget/injector", "PodDisruptionBudget/xds-server",
		"Role/config-watcher", "Role/fairlead-ca", "Role/fairlead-config-watcher", "Role/fairlead-config-watcher-remote-clusters",
		"Role/fairlead-gateways", "Role/fairlead-injector",
		"RoleBinding/config-watcher", "RoleBinding/fairlead-ca", "RoleBinding/fairlead-config-watcher",
		"RoleBinding/fairlead-config-watcher-remote-clusters", "RoleBinding/fairlead-gateways", "RoleBinding/fairlead-injector",
		"Service/ca", "Service/config-watcher", "Service/config-watcher-peers", "Service/injector", "Service/istiod", "Service/xds-server",
		"Service/xds-server-peers",
		"ServiceAccount/ca", "ServiceAccount/config-watcher", "ServiceAccount/fairlead-admin", "ServiceAccount/gateways",
		"ServiceAccount/injector", "ServiceAccount/keeper",
		"ServiceAccount/xds-server",
		"ValidatingAdmissionPolicy/fairlead-gateways", "ValidatingAdmissionPolicyBinding/fairlead-gateways",
		"ValidatingWebhookConfiguration/fairlead-validator",
	}
	if !slices.Equal(kinds, want) {
		t.Errorf("rendered\n%s\nwant\n%s", strings.Join(kinds, "\n"), strings.Join(want, "\n"))
	}
}

// The check above is worth something only if it finds mistakes.
func TestMistakesAreFound(t *testing.T) {
	good, err := render(base)
	if err != nil {
		t.Fatal(err)
	}
	for name, edit := range map[string][2]string{
		"unknown field":  {"readOnlyRootFilesystem: true", "readOnlyRootFileSystem: true"},
		"wrong type":     {"replicas: 2", "replicas: two"},
		"unknown kind":   {"kind: Deployment", "kind: Deploymint"},
		"unknown group":  {"apiVersion: apps/v1", "apiVersion: apps/v9"},
		"repeated field": {"\n  replicas: 2", "\n  replicas: 2\n  replicas: 3"},
	} {
		t.Run(name, func(t *testing.T) {
			bad := strings.Replace(string(good), edit[0], edit[1], 1)
			if bad == string(good) {
				t.Fatalf("%q is not rendered, so the edit changes nothing", edit[0])
			}
			if _, err := decode([]byte(bad)); err == nil {
				t.Error("decoded")
			}
		})
	}
}

// madeByTheCA are the ConfigMaps that the ca writes when it first starts, and their entries. Until then the other
// services' Pods wait for them.
var madeByTheCA = map[string][]string{"fairlead-jwks": {"jwks.json", "issuer"}, "istio-ca-root-cert": {"root-cert.pem"}}

func TestReferencesLeadSomewhere(t *testing.T) {
	objects := mesh(t)
	for _, name := range services {
		d, c := service(t, objects, name)
		pod := d.Spec.Template.Spec
		if _, ok := named[*corev1.ServiceAccount](objects, pod.ServiceAccountName); !ok || pod.ServiceAccountName != name {
			t.Errorf("%s runs as service account %q", name, pod.ServiceAccountName)
		}
		for _, v := range pod.Volumes {
			checkVolume(t, objects, name, v)
			if !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == v.Name }) {
				t.Errorf("%s: volume %s is not mounted", name, v.Name)
			}
		}
		for _, m := range c.VolumeMounts {
			if !slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name }) {
				t.Errorf("%s: mount %s has no volume", name, m.Name)
			}
		}
		for _, e := range c.Env {
			if e.ValueFrom == nil || e.ValueFrom.ConfigMapKeyRef == nil {
				continue
			}
			ref := e.ValueFrom.ConfigMapKeyRef
			if name == "ca" || !slices.Contains(madeByTheCA[ref.Name], ref.Key) {
				t.Errorf("%s: variable %s is from ConfigMap %s, key %s, which is not there", name, e.Name, ref.Name, ref.Key)
			}
		}
	}
}

func checkVolume(t *testing.T, objects []runtime.Object, owner string, v corev1.Volume) {
	t.Helper()
	switch {
	case v.ConfigMap != nil:
		_, made := madeByTheCA[v.ConfigMap.Name]
		_, rendered := named[*corev1.ConfigMap](objects, v.ConfigMap.Name)
		if rendered == made || owner == "ca" {
			t.Errorf("%s: ConfigMap %s is rendered: %v, made by the ca: %v", owner, v.ConfigMap.Name, rendered, made)
		}
		if v.ConfigMap.Optional != nil && *v.ConfigMap.Optional {
			t.Errorf("%s: ConfigMap %s is optional, so that its Pod would wait for a minute until the kubelet looks again", owner, v.ConfigMap.Name)
		}
	case v.PersistentVolumeClaim != nil:
		if _, ok := named[*corev1.PersistentVolumeClaim](objects, v.PersistentVolumeClaim.ClaimName); !ok {
			t.Errorf("%s: no claim %s", owner, v.PersistentVolumeClaim.ClaimName)
		}
	case v.Projected != nil && v.Name == "kube-api-access":
		if owner == "xds-server" {
			t.Errorf("%s has a token for Kubernetes' API", owner)
		}
	case v.Projected != nil:
		for _, source := range v.Projected.Sources {
			if source.ServiceAccountToken == nil || source.ServiceAccountToken.Audience != contract.TokenAudience {
				t.Errorf("%s: volume %s projects something else than a token for istio-ca", owner, v.Name)
			}
		}
	case v.EmptyDir != nil:
		if v.EmptyDir.Medium != corev1.StorageMediumMemory || v.EmptyDir.SizeLimit == nil {
			t.Errorf("%s: volume %s, which holds a key, is on the node's disk or without a limit", owner, v.Name)
		}
	default:
		t.Errorf("%s: volume %s is of a kind that nobody has thought about", owner, v.Name)
	}
}
