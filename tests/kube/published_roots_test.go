package kube

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/kubeapi"
	"fairlead.dev/tests/internal/process"
)

// TestTheKeeperPublishesRootsInARemoteCluster, with no more rights than profile remote gives it: in namespaces that
// exist and that come, against edits and deletions, and again when the roots change.
func TestTheKeeperPublishesRootsInARemoteCluster(t *testing.T) {
	s := kubeapi.Start(t, kubeapi.Options{})
	generate := exec.CommandContext(t.Context(), binaries.Built(t, "fairlead"), "manifest", "generate", "--set", "profile=remote", "--set",
		"values.global.remotePilotAddress=192.0.2.1") //nolint:gosec // the program under test
	out := process.MustDo(t, generate)
	objects, err := kubeapi.Decode([]byte(out))
	if err != nil {
		t.Fatal(err)
	}
	install(t, s, objects)
	first, second := testkit.PKI(t).RootPEM, testkit.PKI(t).RootPEM
	client := s.Client(t).CoreV1()
	write := func(text []byte) {
		t.Helper()
		roots := corev1apply.ConfigMap("fairlead-remote-roots", "istio-system").WithData(map[string]string{"root-cert.pem": string(text)})
		_, err := client.ConfigMaps("istio-system").Apply(t.Context(), roots, metav1.ApplyOptions{FieldManager: "owner", Force: true})
		testkit.NoError(t, err)
	}
	write(first)
	token := filepath.Join(t.TempDir(), "token")
	testkit.WriteFile(t, token, []byte("none"))
	// The control plane is away: what the owner has written serves.
	kubeapi.Keeper(t, s.ServiceAccount(t, "fairlead-remote", "keeper"), "", "--first-roots", "istio-system/fairlead-remote-roots",
		"--xds-address", testkit.FreeAddress(t).String(), "--xds-identity", "istio-system/xds-server", "--ca-identity", "istio-system/ca",
		"--identity", "fairlead-remote/keeper", "--ca-token-file", token,
		"--publish-roots", contract.RootConfigMap)
	everywhere := func(want []byte) {
		t.Helper()
		testkit.Eventually(t, testkit.Patience, func() error {
			namespaces, err := client.Namespaces().List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			for _, ns := range namespaces.Items {
				o, err := client.ConfigMaps(ns.Name).Get(t.Context(), contract.RootConfigMap, metav1.GetOptions{})
				if err != nil {
					return err
				}
				if o.Data["root-cert.pem"] != string(want) {
					return fmt.Errorf("namespace %s has other roots", ns.Name)
				}
			}
			return nil
		})
	}
	everywhere(first)
	s.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: later}}")
	everywhere(first)
	edited, err := client.ConfigMaps("later").Get(t.Context(), contract.RootConfigMap, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	edited.Data = map[string]string{"root-cert.pem": "mine", "other": "stays"}
	if _, err := client.ConfigMaps("later").Update(t.Context(), edited, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := client.ConfigMaps("default").Delete(t.Context(), contract.RootConfigMap, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	everywhere(first)
	write(second)
	everywhere(second)
	kept, err := client.ConfigMaps("later").Get(t.Context(), contract.RootConfigMap, metav1.GetOptions{})
	if err != nil || kept.Data["other"] != "stays" {
		t.Errorf("another entry of the ConfigMap: %v, %v", kept.Data, err)
	}
}
