package kube

import (
	"errors"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/kubeapi"
)

// goneWithin is how long an entry may stay after its machine has gone, if the control plane has started shortly before:
// that machines may come back first takes a minute.
const goneWithin = 3 * time.Minute

const registrationShop = `
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: istio-system}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: machines, namespace: shop}
spec: {metadata: {labels: {app: machine}}, template: {serviceAccount: vm, ports: {http: 8080}}}
`

// TestMachinesRegisterInKubernetes: the replica that leads writes the WorkloadEntry of a machine whose xds-server
// reports to another replica, with the WorkloadGroup as owner, and deletes it when the machine has gone. Machines that
// are not entitled get none.
func TestMachinesRegisterInKubernetes(t *testing.T) {
	s := kubeapi.Start(t, kubeapi.Options{})
	s.ApplyCRDs(t)
	s.Apply(t, registrationShop)
	_, other := startReplicas(t, s)
	address := startXDSServer(t, other).String()
	joins := map[string]any{"AUTO_REGISTER_GROUP": "machines"}
	vm := connectProxy(t, other, address, "vm", "127.0.0.1", joins)
	connectProxy(t, other, address, "vm", "10.9.0.9", joins)
	connectProxy(t, other, address, "thief", "127.0.0.1", joins)

	client, err := dynamic.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	entries := client.Resource(schema.GroupVersionResource{Group: "networking.istio.io", Version: "v1",
		Resource: "workloadentries"}).Namespace("shop")
	const name = "machines-127.0.0.1"
	var entry *unstructured.Unstructured
	testkit.Eventually(t, patience, func() (err error) {
		entry, err = entries.Get(t.Context(), name, metav1.GetOptions{})
		return err
	})
	owners, annotations := entry.GetOwnerReferences(), entry.GetAnnotations()
	if len(owners) != 1 || owners[0].Kind != "WorkloadGroup" || owners[0].Name != "machines" ||
		annotations["istio.io/autoRegistrationGroup"] != "machines" ||
		annotations["istio.io/connectedAt"] == "" || entry.GetLabels()["app"] != "machine" {
		t.Errorf("%v", entry.Object)
	}
	if spec := fmt.Sprint(entry.Object["spec"]); spec != "map[address:127.0.0.1 labels:map[app:machine] ports:map[http:8080] "+
		"serviceAccount:vm]" {
		t.Errorf("spec %s", spec)
	}
	list, err := entries.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("%d entries, %v", len(list.Items), err)
	}
	vm.leave()
	testkit.Eventually(t, goneWithin, func() error {
		_, err := entries.Get(t.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("the entry is still there"), err)
	})
}
