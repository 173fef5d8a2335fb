package kube

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/mcs-api/config/crd"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/tests/internal/kubeapi"
)

const (
	exportCart   = "{apiVersion: multicluster.x-k8s.io/%s, kind: ServiceExport, metadata: {name: cart, namespace: shop}}"
	cartSetHost  = "cart.shop.svc.clusterset.local"
	importedCart = "{apiVersion: multicluster.x-k8s.io/v1beta1, kind: ServiceImport, metadata: {name: cart, namespace: shop}, " +
		"spec: {type: %s, ips: %s, ports: [{name: http, port: 80}]}}"
)

// multiClusterCRDs are the definitions of the Multi-Cluster Services API as its project publishes them.
func multiClusterCRDs(t *testing.T, servers ...*kubeapi.Server) {
	t.Helper()
	dir := t.TempDir()
	var files []string
	for name, text := range map[string][]byte{"exports.yaml": crd.ServiceExportCRD, "imports.yaml": crd.ServiceImportCRD} {
		path := filepath.Join(dir, name)
		testkit.NoError(t, os.WriteFile(path, text, 0o600))
		files = append(files, path)
	}
	for _, s := range servers {
		s.ApplyCRDs(t, files...)
	}
}

// exports are the ServiceExports of namespace shop.
func exports(t *testing.T, s *kubeapi.Server) dynamic.ResourceInterface {
	t.Helper()
	client := testkit.Must(dynamic.NewForConfig(s.Config))(t)
	return client.Resource(schema.GroupVersionResource{Group: "multicluster.x-k8s.io", Version: "v1beta1",
		Resource: "serviceexports"}).Namespace("shop")
}

// told waits until the export of shop/cart in a cluster has conditions, "Type=Status/Reason" each.
func told(t *testing.T, s *kubeapi.Server, want ...string) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		o, err := exports(t, s).Get(t.Context(), "cart", metav1.GetOptions{})
		if err != nil {
			return err
		}
		list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
		var got []string
		for _, c := range list {
			m, _ := c.(map[string]any)
			got = append(got, fmt.Sprintf("%s=%s/%s", m["type"], m["status"], m["reason"]))
		}
		for _, w := range want {
			if !strings.Contains(strings.Join(got, " "), w) {
				return fmt.Errorf("conditions %q, want %q", got, want)
			}
		}
		return nil
	})
}

// Two clusters, each with a control plane that reads both: exports decide which endpoints the clients of each find,
// each control plane writes the conditions of its own exports, and an import gives the host of both.
func TestServiceExportsOfTwoClusters(t *testing.T) {
	own, east := twoClusters(t)
	multiClusterCRDs(t, own, east)
	flags := []string{"--mcs-service-discovery", "--mcs-host", "--remote-cluster-allow-addresses", "127.0.0.0/8"}
	w := startWatcher(t, own.Kubeconfig, flags...)
	remoteSecret(t, own, "istio-remote-secret-east", "east", reader(t, east, "reader"))
	w.remoteIs("east", "SYNCED", "")
	xds := startXDSServer(t, w).String()
	here := followEndpoints(t, w, xds, clusterID, "cart-0", "cart", cartCluster)
	there := followEndpoints(t, w, xds, "east", "cart-0", "cart", cartCluster)
	here.become("no export", ownCart)
	there.become("no export, from the other cluster", eastCart)

	east.Apply(t, fmt.Sprintf(exportCart, "v1alpha1"))
	here.become("exported by east", ownCart, eastCart)
	there.become("exported by east, from there", eastCart)
	first := testkit.Must(exports(t, east).Get(t.Context(), "cart", metav1.GetOptions{}))(t).GetCreationTimestamp()
	time.Sleep(time.Until(first.Add(1100 * time.Millisecond))) // so that it is the older: times have seconds
	own.Apply(t, fmt.Sprintf(exportCart, "v1beta1"))
	there.become("exported by both", ownCart, eastCart)

	// A condition of somebody else stays.
	foreign := `{"status":{"conditions":[{"type":"example.com/Seen","status":"True","reason":"Seen","message":"",` +
		`"lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`
	other := fmt.Sprintf(exportCart, "v1beta1")
	own.Apply(t, strings.ReplaceAll(other, "name: cart,", "name: nothing,"))
	_, err := exports(t, own).Patch(t.Context(), "nothing", types.MergePatchType, []byte(foreign), metav1.PatchOptions{}, "status")
	testkit.NoError(t, err)
	told(t, own, "Valid=True/Valid", "Ready=True/Exported", "Conflict=False/NoConflicts")
	testkit.Eventually(t, patience, func() error {
		o, err := exports(t, own).Get(t.Context(), "nothing", metav1.GetOptions{})
		if text := fmt.Sprint(o); err == nil && (!strings.Contains(text, "NoService") || !strings.Contains(text, "example.com/Seen")) {
			return errors.New(text)
		}
		return err
	})
	if o := testkit.Must(exports(t, east).Get(t.Context(), "cart", metav1.GetOptions{}))(t); o.Object["status"] != nil {
		t.Errorf("the control plane of another cluster has written %v", o.Object["status"])
	}

	// The control plane of east comes to the same verdict about its own.
	startWatcher(t, east.Kubeconfig, append(flags, "--cluster-id", "east")...).ready()
	remoteSecret(t, east, "istio-remote-secret-own", clusterID, reader(t, own, "reader"))
	told(t, east, "Valid=True/Valid", "Ready=True/Exported", "Conflict=False/NoConflicts")
	own.Apply(t, "{apiVersion: v1, kind: Service, metadata: {name: cart, namespace: shop}, spec: {clusterIP: 198.19.0.20, selector: {app: "+
		"cart}, ports: [{name: http, port: 80, targetPort: 8080}, {name: more, port: 81}], sessionAffinity: ClientIP}}")
	for _, s := range []*kubeapi.Server{own, east} {
		told(t, s, "Conflict=True/PortConflict,SessionAffinityConflict,SessionAffinityConfigConflict")
	}

	// An import gives the host of both.
	v := w.subscribe()
	own.Apply(t, fmt.Sprintf(importedCart, "ClusterSetIP", "[198.18.0.7]"))
	v.has("Service shop/"+cartSetHost, func(r *configv1.Resource) bool {
		return fmt.Sprint(r.GetService().GetAddresses()) == "[198.18.0.7]" && len(r.GetService().GetPorts()) == 2 &&
			!r.GetService().GetSessionAffinityClientIp() // east's export is the older
	})
	followEndpoints(t, w, xds, clusterID, "cart-0", "cart", "outbound|80||"+cartSetHost).become("the host of both", ownCart, eastCart)

	testkit.NoError(t, exports(t, east).Delete(t.Context(), "cart", metav1.DeleteOptions{}))
	here.become("no longer exported by east", ownCart)
	told(t, own, "Conflict=False/NoConflicts")
}

// With --mcs-auto-export, and no more rights than the chart gives, each Service of the cluster gets an export once.
func TestAutomaticExports(t *testing.T) {
	s := kubeapi.Start(t, kubeapi.Options{})
	newMesh(t, s)
	multiClusterCRDs(t, s)
	s.Apply(t, fmt.Sprintf(clusterShop, "n1", "west-1", "198.19.0.20", "10.1.1.1"))
	s.Apply(t, "{apiVersion: v1, kind: Service, metadata: {name: outside, namespace: shop}, "+
		"spec: {type: ExternalName, externalName: example.com}}")
	kubeconfig := s.User(t, "config-watcher")
	s.Grant(t, account, append(rules(t, ""),
		kubeapi.Rule("multicluster.x-k8s.io", []string{"serviceexports", "serviceimports"}, "get", "list", "watch"),
		kubeapi.Rule("multicluster.x-k8s.io", []string{"serviceexports/status"}, "patch"),
		kubeapi.Rule("multicluster.x-k8s.io", []string{"serviceexports"}, "create"))...)
	startWatcher(t, kubeconfig, "--mcs-auto-export", "--remote-clusters=false", "--registries=false").ready()
	told(t, s, "Valid=True/Valid", "Ready=True/Exported")
	o := testkit.Must(exports(t, s).Get(t.Context(), "cart", metav1.GetOptions{}))(t)
	service := testkit.Must(s.Client(t).CoreV1().Services("shop").Get(t.Context(), "cart", metav1.GetOptions{}))(t)
	if owners := o.GetOwnerReferences(); len(owners) != 1 || owners[0].UID != service.UID || owners[0].Kind != "Service" {
		t.Errorf("the export is owned by %v", owners)
	}

	// Who deletes an export keeps it deleted.
	testkit.NoError(t, exports(t, s).Delete(t.Context(), "cart", metav1.DeleteOptions{}))
	s.Apply(t, "{apiVersion: v1, kind: Service, metadata: {name: later, namespace: shop}, spec: {ports: [{name: http, port: 80}]}}")
	testkit.Eventually(t, patience, func() error {
		_, err := exports(t, s).Get(t.Context(), "later", metav1.GetOptions{})
		return err
	})
	time.Sleep(time.Second) // an export that should not come
	for _, name := range []string{"cart", "outside"} {
		if _, err := exports(t, s).Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	client := testkit.Must(dynamic.NewForConfig(s.Config))(t)
	all := testkit.Must(client.Resource(schema.GroupVersionResource{Group: "multicluster.x-k8s.io", Version: "v1alpha1",
		Resource: "serviceexports"}).List(t.Context(), metav1.ListOptions{}))(t)
	for _, e := range all.Items {
		if e.GetNamespace() == "default" && e.GetName() == "kubernetes" {
			t.Error("the API server is exported")
		}
	}
}
