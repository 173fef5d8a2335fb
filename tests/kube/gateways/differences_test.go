package gateways

import (
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
)

// A difference between what Istio's controller makes of a Gateway and what fairlead-gateways makes of it.
type difference struct {
	// what is a kind and a field, or the name of a Gateway of the corpus of which one makes nothing.
	what, istio, here, reason string
}

var differences = []difference{
	{"all of rights", "makes them", "makes nothing, and says why",
		"an overlay sets the image: whoever writes ConfigMaps would have any Pod, with any account of the namespace"},
	{"Deployment metadata.labels.app.kubernetes.io/part-of", "–", "`fairlead`", ofChart},
	{"Deployment metadata.labels.istio.io/rev", "–", "the revision", "it tells which control plane a gateway is of"},
	{"Deployment spec.replicas", "that of the overlay", "left to the autoscaler, where there is one",
		"each write would take back what the autoscaler has done"},
	{"Deployment spec.revisionHistoryLimit", "10", "5", ofChart},
	{"Deployment spec.strategy.rollingUpdate.maxSurge", "25 %", "100 %", "the new Pods are there at once"},
	{"Deployment spec.strategy.rollingUpdate.maxUnavailable", "25 %", "0", "no Pod ends before another serves: no request fails"},
	{"Deployment spec.template.metadata.annotations.istio.io/rev", "the revision", "–", "Pods have the label"},
	{"Deployment spec.template.metadata.annotations.networking.istio.io/service-type", "copied from the Gateway", "–",
		"it is about the Service; on Pods it means nothing"},
	{"Deployment spec.template.metadata.labels.app.kubernetes.io/part-of", "–", "`fairlead`", ofChart},
	{"Deployment spec.template.metadata.labels.istio.io/rev", "–", "the revision", "it tells which control plane a Pod is of"},
	{"Deployment spec.template.metadata.labels.sidecar.istio.io/inject", "that of `spec.infrastructure`", "`false`",
		"a label by which the mesh treats Pods is not the Gateway's to set; an event says so"},
	{"Deployment spec.template.spec.automountServiceAccountToken", "–", "`false`", rights},
	{"Deployment spec.template.spec.container.securityContext.privileged", "`false`", "–", "that is the default"},
	{"Deployment spec.template.spec.container.securityContext.runAsGroup", "1337", "–", ofPod},
	{"Deployment spec.template.spec.container.securityContext.runAsNonRoot", "`true`", "–", ofPod},
	{"Deployment spec.template.spec.container.securityContext.runAsUser", "1337", "–", ofPod},
	{"Deployment spec.template.spec.enableServiceLinks", "–", "`false`", "Services of the namespace become no variables of the proxy"},
	{"Deployment spec.template.spec.securityContext.fsGroup", "–", "1337", ofPod},
	{"Deployment spec.template.spec.securityContext.runAsGroup", "–", "1337", ofPod},
	{"Deployment spec.template.spec.securityContext.runAsNonRoot", "–", "`true`", ofPod},
	{"Deployment spec.template.spec.securityContext.runAsUser", "–", "1337", ofPod},
	{
		"Deployment spec.template.spec.securityContext.seccompProfile.type",
		"–",
		"`RuntimeDefault`",
		"Pods are admitted in namespaces of level restricted",
	},
	{"Deployment spec.template.spec.terminationGracePeriodSeconds", "30", "45", "connections drain"},
	{"Deployment spec.template.spec.topologySpreadConstraints", "–", "by node, if possible", "the loss of a node leaves other Pods"},
	{"HorizontalPodAutoscaler metadata.labels.app.kubernetes.io/part-of", "–", "`fairlead`", ofChart},
	{"PodDisruptionBudget metadata.labels.app.kubernetes.io/part-of", "–", "`fairlead`", ofChart},
	{"Service metadata.labels.app.kubernetes.io/part-of", "–", "`fairlead`", ofChart},
	{"Service metadata.labels.istio.io/rev", "–", "the revision", "it tells which control plane a gateway is of"},
	{"Service spec.ports[].protocol", "TCP", "UDP, of a listener of that protocol", "Istio has no UDPRoute"},
	{"ServiceAccount automountServiceAccountToken", "–", "`false`", rights},
}

// Reasons that several have.
const (
	ofChart = "the chart gateway has it"
	ofPod   = "the same by another field: the Pod has it for all containers"
	rights  = "a proxy needs no token for Kubernetes"
)

// TestPage holds the page of differences.
func TestPage(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString(`# Deployments of gateways: differences from Istio

What fairlead-gateways and the controller in Istio's istiod make of the same Gateways, by field. ` + "`make test-kube`" + ` compares
them in one API server; a difference needs a row here. Of Pods it compares what overlays may set, the account and the
security context: the program in the container is another one. Written by the test (` + "`-run TestPage -update`" + `).

| what | Istio | Fairlead | why |
|---|---|---|---|
`)
	for _, d := range differences {
		b.WriteString("| `" + d.what + "` | " + d.istio + " | " + d.here + " | " + d.reason + " |\n")
	}
	testkit.Golden(t, "../../../docs/reference/gateway-deployment-differences.md", []byte(b.String()))
}
