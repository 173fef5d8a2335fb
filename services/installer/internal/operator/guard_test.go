package operator

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"fairlead.dev/services/installer/internal/install/profile"
	"fairlead.dev/services/installer/manifests"
)

// Who may write IstioOperators installs a mesh by that, and no Pod with the node's privileges, no account's token and
// no right beside it.
func TestIstioOperatorsGiveNoPrivileges(t *testing.T) {
	pkg, err := profile.Open(manifests.FS)
	if err != nil {
		t.Fatal(err)
	}
	overlay := func(component, kind, name, path, value string) string {
		return "components: {" + component + ": {enabled: true, k8s: {overlays: [{kind: " + kind + ", name: " + name + ", patches: [{path: " +
			path + ", value: " + value + "}]}]}}}"
	}
	const server = "xdsServer"
	for name, tc := range map[string]struct{ spec, want string }{
		"nothing":               {"{}", ""},
		"the CNI component":     {"components: {cni: {enabled: true}}", ""},
		"an overlay of a label": {overlay(server, "Deployment", "xds-server", "metadata.labels.team", "mesh"), ""},
		"an overlay of an argument": {overlay(server, "Deployment", "xds-server", `"spec.template.spec.containers[name:xds-server].args[-1]"`,
			"--log-level=debug"), ""},
		"another namespace": {overlay(server, "Deployment", "xds-server", "metadata.namespace", "kube-system"),
			"an overlay makes Deployment kube-system/xds-server of another object"},
		"another name": {overlay(server, "Deployment", "xds-server", "metadata.name", "coredns"), "of another object"},
		"another kind": {overlay(server, "Deployment", "xds-server", "kind", "DaemonSet"), "of another object"},
		"an account": {overlay(server, "Deployment", "xds-server", "spec.template.spec.serviceAccountName", "keeper"),
			"another service account"},
		"a hostPath volume": {overlay(server, "Deployment", "xds-server", "spec.template.spec.volumes",
			"[{name: a, hostPath: {path: /}}]"), "a hostPath volume"},
		"the node's processes": {overlay(server, "Deployment", "xds-server", "spec.template.spec.hostPID", "true"), "hostPID"},
		"a privileged container": {overlay(server, "Deployment", "xds-server",
			`"spec.template.spec.containers[name:xds-server].securityContext.privileged"`, "true"), "a privileged container"},
		"a port of the node": {overlay(server, "Deployment", "xds-server", `"spec.template.spec.containers[name:xds-server].ports"`,
			"[{containerPort: 15012, hostPort: 15012}]"), "a hostPort"},
		"a setting of the kernel": {overlay(server, "Deployment", "xds-server", "spec.template.spec.securityContext.sysctls",
			"[{name: net.core.somaxconn, value: '1'}]"), "sysctls"},
		"a label of SELinux": {overlay(server, "Deployment", "xds-server", "spec.template.spec.securityContext.seLinuxOptions",
			"{type: spc_t}"), "seLinuxOptions"},
		"a process of the host": {overlay(server, "Deployment", "xds-server", "spec.template.spec.securityContext.windowsOptions",
			"{hostProcess: true}"), "windowsOptions.hostProcess"},
		"no profile of seccomp": {overlay(server, "Deployment", "xds-server",
			`"spec.template.spec.containers[name:xds-server].securityContext.seccompProfile"`, "{type: Unconfined}"), "no seccomp profile"},
		"no profile of AppArmor": {overlay(server, "Deployment", "xds-server",
			`"spec.template.spec.containers[name:xds-server].securityContext.appArmorProfile"`, "{type: Unconfined}"), "no AppArmor profile"},
		"the program of the keeper": {overlay("keeper", "Deployment", "keeper", `"spec.template.spec.containers[name:keeper].image"`, "evil"),
			"which have the right to write webhook configurations"},
		"arguments of the keeper": {overlay("keeper", "Deployment", "keeper", `"spec.template.spec.containers[name:keeper].args[-1]"`,
			"--injection=other"), "which have the right to write webhook configurations"},
		"a role": {overlay("configWatcher", "ClusterRole", "fairlead-config-watcher", "rules",
			"[{apiGroups: ['*'], resources: ['*'], verbs: ['*']}]"), "an overlay changes ClusterRole fairlead-config-watcher"},
		"a webhook": {overlay("injector", "MutatingWebhookConfiguration", "istio-sidecar-injector", `"webhooks[0].rules"`,
			"[]"), "an overlay changes MutatingWebhookConfiguration"},
		"the Pods of the CNI plugin": {overlay("cni", "DaemonSet", "fairlead-cni-node",
			`"spec.template.spec.containers[name:install-cni].image"`, "evil"), "which have privileges of the node"},
		"volumes by values": {"values: {xdsServer: {volumes: [{name: a, hostPath: {path: /etc}}]}}", "a hostPath volume"},
		"an overlay of two privileges": {overlay(server, "Deployment", "xds-server", "spec.template.spec",
			"{hostNetwork: true, hostIPC: true, containers: []}"), "hostIPC"},
	} {
		t.Run(name, func(t *testing.T) {
			var spec map[string]any
			if err := yaml.Unmarshal([]byte(tc.spec), &spec); err != nil {
				t.Fatal(err)
			}
			r := &resource{&unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "install.istio.io/v1alpha1", "kind": "IstioOperator",
				"metadata": map[string]any{"namespace": "istio-system", "name": "mesh"}, "spec": spec,
			}}}
			for _, allowed := range []bool{false, true} {
				op := &Operator{options: &Options{AllowPrivileges: allowed}, pkg: pkg, version: "test"}
				_, _, err := op.request(r)
				switch {
				case tc.want == "" || allowed:
					if err != nil {
						t.Errorf("allowed %v: %v", allowed, err)
					}
				case err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), allowFlag):
					t.Errorf("got %v, want %q", err, tc.want)
				}
			}
		})
	}
}
