package gateways

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/pkg/svid"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/kubeapi"
	"fairlead.dev/tests/internal/process"
)

// watch starts a config-watcher with the rights of the installation, which writes statuses. It ends with the test.
func (r *rig) watch() {
	r.t.Helper()
	ca, dir := testkit.PKI(r.t), r.t.TempDir()
	state := filepath.Join(dir, "state")
	ca.WriteSVID(filepath.Join(state, "svid", svid.CacheFile), system, "config-watcher")
	// The keeper does so for the namespaces of Gateways that name ConfigMaps.
	r.Grant(r.t, kubeapi.ServiceAccountSubject(system, "config-watcher"), kubeapi.Rule("", []string{"configmaps"}, "get", "list", "watch"))
	process.Run(r.t, process.Program{Name: "config-watcher", Path: binaries.Built(r.t, "config-watcher"), Args: []string{
		"--grpc-address", testkit.FreeAddress(r.t).String(), "--ops-address", testkit.FreeAddress(r.t).String(),
		"--trust-domain", testkit.TrustDomain, "--root-cert-file", ca.WriteRoot(dir), "--state-dir", state, "--ca-address", "127.0.0.1:1",
		"--kubernetes", "--kubeconfig", r.ServiceAccount(r.t, system, "config-watcher"), "--cluster-id", "Kubernetes",
	}})
}

// accepted waits until the condition Accepted of an object has a status and a reason, and returns its message.
func (r *rig) accepted(kind, namespace, name, status, reason string) (message string) {
	r.t.Helper()
	testkit.Eventually(r.t, patience, func() error {
		u := r.get(kind, namespace, name)
		if u == nil {
			return fmt.Errorf("there is no %s %s/%s", kind, namespace, name)
		}
		conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
		for _, o := range conditions {
			c, _ := o.(map[string]any)
			if c["type"] != "Accepted" {
				continue
			}
			message = fmt.Sprint(c["message"])
			if c["status"] == status && c["reason"] == reason {
				return nil
			}
		}
		return fmt.Errorf("%s %s/%s is not Accepted=%s/%s: %v", kind, namespace, name, status, reason, conditions)
	})
	return message
}

// refused is what the newest event of a Gateway says of its parameters.
func (r *rig) refused(name string) string {
	r.t.Helper()
	list, err := r.Client(r.t).CoreV1().Events(apart).List(r.t.Context(), metav1.ListOptions{})
	testkit.NoError(r.t, err)
	text := ""
	for _, e := range list.Items {
		if e.InvolvedObject.Name == name && e.Reason == "InvalidParameters" {
			text = e.Message
		}
	}
	said, ok := strings.CutSuffix(text, ". Nothing is changed until then")
	if !ok {
		r.t.Errorf("the event of Gateway %s is %q", name, text)
	}
	return said
}

// TestTheStatusSaysWhatTheDeployerSays: config-watcher refuses a Gateway for the reason for which fairlead-gateways
// deploys nothing, and both follow the ConfigMaps.
func TestTheStatusSaysWhatTheDeployerSays(t *testing.T) {
	t.Parallel()
	r := &rig{Server: kubeapi.Start(t, kubeapi.Options{}), t: t}
	r.Apply(t, r.fairlead("manifest", "generate", "--set", "profile=minimal", "--set", "values.base.enableGatewayAPICRDs=true"))
	r.prepare()
	r.start()
	r.watch() // which makes the classes
	const ref = "infrastructure: {parametersRef: {group: '', kind: %s, name: none}}, "
	const one = "listeners: [{name: http, port: 80, protocol: HTTP}]}"
	all := map[string]string{
		"absent":  gateway(apart, "absent", "", "{gatewayClassName: istio, "+fmt.Sprintf(ref, "ConfigMap")+one),
		"kind":    gateway(apart, "kind", "", "{gatewayClassName: istio, "+fmt.Sprintf(ref, "Secret")+one),
		"type":    gateway(apart, "type", ", annotations: {networking.istio.io/service-type: ExternalName}", ""),
		"account": gateway(apart, "account", ", annotations: {gateway.istio.io/service-account: A}", ""),
		"rename":  gateway(apart, "rename", ", annotations: {gateway.istio.io/name-override: 1a}", ""),
		"yaml":    overlaid("yaml", map[string]string{"deployment": "spec: ["}),
		"minus":   overlaid("minus", map[string]string{"deployment": "spec: {replicas: -1}"}),
	}
	for name, data := range refusedOverlays() {
		all["try-"+name] = overlaid("try-"+name, data)
	}
	for _, documents := range all {
		r.Apply(t, documents)
	}
	for name := range all {
		r.event(apart, name, "InvalidParameters", "")
		if said := r.accepted("Gateway", apart, name, "False", "InvalidParameters"); said != r.refused(name) {
			t.Errorf("Gateway %s: the status says\n  %s\nand fairlead-gateways\n  %s", name, said, r.refused(name))
		}
	}

	// The ConfigMap decides, not the Gateway's generation.
	r.Apply(t, configMap(apart, "minus", map[string]string{"deployment": "spec: {replicas: 2}"}))
	r.accepted("Gateway", apart, "minus", "True", "Accepted")
	r.has(apart, "minus-istio", standard...)
	r.Apply(t, configMap(apart, "none", map[string]string{"service": "spec: {type: ClusterIP}"}))
	r.accepted("Gateway", apart, "absent", "True", "Accepted")
	r.has(apart, "absent-istio", standard...)

	// What all Gateways of a class have in common.
	r.Apply(t, gateway(apart, "plain", "", ""))
	r.accepted("Gateway", apart, "plain", "True", "Accepted")
	defaults := func(text string) {
		t.Helper()
		r.Apply(t, strings.Replace(configMap(system, "defaults", map[string]string{"deployment": text}), "name: defaults",
			"name: defaults, labels: {gateway.istio.io/defaults-for-class: istio}", 1))
	}
	defaults("spec: {template: {spec: {hostNetwork: true}}}")
	r.event(apart, "plain", "InvalidParameters", "hostNetwork")
	if said := r.accepted("Gateway", apart, "plain", "False", "InvalidParameters"); said != r.refused("plain") {
		t.Errorf("the status says\n  %s\nand fairlead-gateways\n  %s", said, r.refused("plain"))
	}
	r.accepted("GatewayClass", "", "istio", "False", "InvalidParameters")
	r.accepted("GatewayClass", "", "fairlead", "True", "Accepted")
	defaults("spec: {replicas: 3}")
	r.accepted("GatewayClass", "", "istio", "True", "Accepted")
	r.accepted("Gateway", apart, "plain", "True", "Accepted")
	r.replicas("plain-istio", 3)
}
