package manifests_test

import (
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// TestAnExternalControlPlane: in its own cluster config-watcher has the credential for another one, and nobody has
// rights or webhooks for a configuration that nobody reads. Both spellings of Istio's mean that.
func TestAnExternalControlPlane(t *testing.T) {
	for name, values := range map[string]string{
		"a value": "global: {externalIstiod: true}", "a variable": "pilot: {env: {EXTERNAL_ISTIOD: \"true\"}}",
	} {
		objects := renderedSpec(t, open(t), "apiVersion: install.istio.io/v1alpha1\nkind: IstioOperator\n"+
			"spec: {profile: minimal, values: {"+values+"}}\n")
		watcher := find[*appsv1.Deployment](t, objects, "config-watcher").Spec.Template.Spec
		if !slices.Contains(watcher.Containers[0].Args, "--kubeconfig=/var/run/secrets/remote/config") {
			t.Errorf("%s: flags of config-watcher %v", name, watcher.Containers[0].Args)
		}
		mounted := false
		for _, v := range watcher.Volumes {
			mounted = mounted || v.Secret != nil && v.Secret.SecretName == "istio-kubeconfig"
		}
		if !mounted {
			t.Errorf("%s: no volume is Secret istio-kubeconfig", name)
		}
		for _, o := range objects {
			switch o := o.(type) {
			case *admissionv1.MutatingWebhookConfiguration, *admissionv1.ValidatingWebhookConfiguration:
				t.Errorf("%s: there is a webhook", name)
			case *rbacv1.ClusterRoleBinding:
				if strings.HasPrefix(o.Name, "fairlead-config-watcher") || strings.HasPrefix(o.Name, "fairlead-keeper") {
					t.Errorf("%s: %s gives rights", name, o.Name)
				}
			}
		}
		if runs := deployments(objects); !slices.Equal(runs, []string{"ca", "config-watcher", "injector", "xds-server"}) {
			t.Errorf("%s: %v run", name, runs)
		}
	}
}

// TestAConfigCluster has an account by which such a control plane reads it, and the keeper gives that its rights in
// single namespaces. Profile external is profile remote with a value.
func TestAConfigCluster(t *testing.T) {
	for name, spec := range map[string]string{
		"profile external": "profile: external, values: {", "profile remote": "profile: remote, values: {",
		"a value": "values: {profile: external, ",
	} {
		if name == "profile remote" {
			spec += "global: {configCluster: true, remotePilotAddress: 192.0.2.1}}"
		} else {
			spec += "global: {remotePilotAddress: 192.0.2.1}}"
		}
		objects := renderedSpec(t, open(t), "apiVersion: install.istio.io/v1alpha1\nkind: IstioOperator\nspec: {"+spec+"}\n")
		binding := find[*rbacv1.ClusterRoleBinding](t, objects, "fairlead-config-watcher")
		if s := binding.Subjects[0]; s.Namespace+"/"+s.Name != "istio-system/config-watcher" {
			t.Errorf("%s: %+v", name, s)
		}
		flags := flagsOf(t, objects, "keeper")
		for _, want := range []string{"--bind-to=istio-system/config-watcher", "--bind-credentials=fairlead-config-watcher-credentials"} {
			if !slices.Contains(flags, want) {
				t.Errorf("%s: the keeper has no flag %s in %v", name, want, flags)
			}
		}
		if runs := deployments(objects); !slices.Equal(runs, []string{"injector", "keeper"}) {
			t.Errorf("%s: %v run", name, runs)
		}
	}
	without := primaryRemote(t, "profile: remote, ", "")
	for _, o := range without {
		if b, ok := o.(*rbacv1.ClusterRoleBinding); ok && strings.HasPrefix(b.Name, "fairlead-config-watcher") {
			t.Errorf("profile remote alone gives %s", b.Name)
		}
	}
}
