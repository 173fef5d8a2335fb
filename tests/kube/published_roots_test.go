package kube

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	file := filepath.Join(t.TempDir(), "root-cert.pem")
	write := func(text []byte) {
		if err := os.WriteFile(file+".new", text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write(first)
	kubeapi.Keeper(t, s.ServiceAccount(t, "istio-system", "keeper"), file, "--publish-roots", contract.RootConfigMap)
	client := s.Client(t).CoreV1()
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
