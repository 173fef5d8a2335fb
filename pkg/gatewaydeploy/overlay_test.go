package gatewaydeploy_test

import (
	"strings"
	"testing"

	"fairlead.dev/pkg/gatewaydeploy"
)

func TestAllowedOverlays(t *testing.T) {
	for key, texts := range map[string][]string{
		"deployment": {"", "{}", `
apiVersion: apps/v1
kind: Deployment
metadata: {labels: {team: a}, annotations: {note: b}}
spec:
  replicas: 3
  template:
    metadata: {annotations: {cluster-autoscaler.kubernetes.io/safe-to-evict: "true", note: a}, labels: {app.kubernetes.io/name: web}}
    spec:
      nodeSelector: {disk: ssd}
      priorityClassName: high
      tolerations: [{key: a, operator: Exists}]
      affinity: {nodeAffinity: {}}
      topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}]
      containers: [{name: istio-proxy, resources: {requests: {cpu: 10m, memory: 1Gi}, limits: null}}]
`, "spec: {replicas: null}"},
		"service": {`
metadata: {annotations: {networking.gke.io/load-balancer-type: Internal, service.beta.kubernetes.io/aws-load-balancer-type: nlb}}
spec: {type: NodePort, externalTrafficPolicy: Local, loadBalancerClass: a/b, loadBalancerSourceRanges: [10.0.0.0/8], loadBalancerIP: 192.0.2.1,
  allocateLoadBalancerNodePorts: false, ports: [{port: 80, nodePort: 30080}, {port: 53, protocol: UDP, nodePort: 30053}]}
`},
		"serviceAccount": {"metadata: {annotations: {note: a}}"},
		"horizontalPodAutoscaler": {"", "spec: {minReplicas: 2, maxReplicas: 9, " +
			"metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 60}}}]}"},
		"podDisruptionBudget": {"spec: {minAvailable: 50%}", "spec: {maxUnavailable: 1, unhealthyPodEvictionPolicy: AlwaysAllow}"},
	} {
		for _, text := range texts {
			if err := gatewaydeploy.Check("ConfigMap ns/o", map[string]string{key: text}); err != nil {
				t.Errorf("%s: %s: %v", key, text, err)
			}
		}
	}
}

// TestRefusedOverlays has what would give a Pod other rights, and what cannot be meant: each is refused with the field.
func TestRefusedOverlays(t *testing.T) {
	pod := func(text string) string { return "spec: {template: {spec: " + text + "}}" }
	container := func(text string) string { return pod("{containers: [{name: istio-proxy, " + text + "}]}") }
	for _, c := range []struct{ key, text, field string }{
		{"deployment", pod("{hostNetwork: true}"), "spec.template.spec.hostNetwork"},
		{"deployment", pod("{hostPID: true}"), "spec.template.spec.hostPID"},
		{"deployment", pod("{serviceAccountName: admin}"), "spec.template.spec.serviceAccountName"},
		{"deployment", pod("{serviceAccount: admin}"), "spec.template.spec.serviceAccount"},
		{"deployment", pod("{automountServiceAccountToken: true}"), "spec.template.spec.automountServiceAccountToken"},
		{"deployment", pod("{volumes: [{name: a, hostPath: {path: /}}]}"), "spec.template.spec.volumes"},
		{"deployment", pod("{securityContext: {runAsUser: 0}}"), "spec.template.spec.securityContext"},
		{"deployment", pod("{initContainers: [{name: a, image: b}]}"), "spec.template.spec.initContainers"},
		{"deployment", pod("{ephemeralContainers: []}"), "spec.template.spec.ephemeralContainers"},
		{"deployment", pod("{containers: [{name: other, image: b}]}"), "spec.template.spec.containers[0].name"},
		{"deployment", pod("{containers: [{image: b}]}"), "spec.template.spec.containers[0]"},
		{"deployment", pod("{containers: {}}"), "spec.template.spec.containers"},
		{"deployment", pod("{nodeName: master}"), "spec.template.spec.nodeName"},
		{"deployment", pod("{runtimeClassName: host}"), "spec.template.spec.runtimeClassName"},
		{"deployment", pod("{resourceClaims: []}"), "spec.template.spec.resourceClaims"},
		{"deployment", pod("{imagePullSecrets: [{name: a}]}"), "spec.template.spec.imagePullSecrets"},
		{"deployment", pod("{priorityClassName: system-node-critical}"), "spec.template.spec.priorityClassName"},
		{"deployment", pod("null"), "spec.template.spec"},
		{"deployment", "spec: null", "spec"},
		{"deployment", container("image: evil"), "spec.template.spec.containers[0].image"},
		{"deployment", container("command: [sh]"), "spec.template.spec.containers[0].command"},
		{"deployment", container("args: [sh]"), "spec.template.spec.containers[0].args"},
		{"deployment", container("env: [{name: CA_ADDR, value: evil}]"), "spec.template.spec.containers[0].env"},
		{"deployment", container("envFrom: [{secretRef: {name: a}}]"), "spec.template.spec.containers[0].envFrom"},
		{"deployment", container("volumeMounts: []"), "spec.template.spec.containers[0].volumeMounts"},
		{"deployment", container("securityContext: {privileged: true}"), "spec.template.spec.containers[0].securityContext"},
		{"deployment", container("lifecycle: {}"), "spec.template.spec.containers[0].lifecycle"},
		{"deployment", container("ports: [{containerPort: 1, hostPort: 1}]"), "spec.template.spec.containers[0].ports"},
		{"deployment", container("resources: {claims: [{name: a}]}"), "spec.template.spec.containers[0].resources.claims"},
		{"deployment", container("resources: {limits: {example.com/fuse: 1}}"), "spec.template.spec.containers[0].resources.limits"},
		{"deployment", container("resources: {limits: {cpu: plenty}}"), "part of a Deployment"},
		{"deployment", "spec: {template: {metadata: {labels: {sidecar.istio.io/inject: 'true'}}}}", "spec.template.metadata.labels"},
		{"deployment", "spec: {template: {metadata: {annotations: {proxy.istio.io/config: 'discoveryAddress: evil'}}}}", "spec.template.metadata.annotations"},
		{"deployment", "spec: {template: {metadata: {annotations: {container.apparmor.security.beta.kubernetes.io/istio-proxy: unconfined}}}}",
			"spec.template.metadata.annotations"},
		{"deployment", "spec: {template: {metadata: {annotations: {k8s.v1.cni.cncf.io/networks: host}}}}", "spec.template.metadata.annotations"},
		{"deployment", "spec: {template: {metadata: {annotations: {io.katacontainers.config.hypervisor.kernel: a}}}}",
			"spec.template.metadata.annotations"},
		{"deployment", "spec: {template: {metadata: {labels: null}}}", "spec.template.metadata.labels"},
		{"deployment", "spec: {template: {metadata: {labels: {$patch: replace}}}}", "spec.template.metadata.labels"},
		{"deployment", "metadata: {labels: {gateway.istio.io/managed: other}}", "metadata.labels"},
		{"deployment", "metadata: {name: other}", "metadata.name"},
		{"deployment", "metadata: {namespace: kube-system}", "metadata.namespace"},
		{"deployment", "metadata: {ownerReferences: []}", "metadata.ownerReferences"},
		{"deployment", "metadata: {finalizers: [a/b]}", "metadata.finalizers"},
		{"deployment", "spec: {selector: {}}", "spec.selector"},
		{"deployment", "spec: {replicas: -1}", "spec.replicas"},
		{"deployment", "spec: {replicas: many}", "part of a Deployment"},
		{"deployment", "spec: {$patch: replace}", "spec.$patch"},
		{"deployment", pod("{tolerations: [{$patch: delete}]}"), "spec.template.spec.tolerations[0].$patch"},
		{"deployment", "kind: DaemonSet", "kind"},
		{"deployment", "spec: {}\nspec: {replicas: 2}", "no overlay"},
		{"deployment", "[]", "no overlay"},
		{"service", "spec: {type: ExternalName, externalName: evil}", "spec.externalName"},
		{"service", "spec: {type: ExternalName}", "spec.type"},
		{"service", "spec: {externalIPs: [192.0.2.1]}", "spec.externalIPs"},
		{"service", "spec: {selector: {app: other}}", "spec.selector"},
		{"service", "spec: {clusterIP: None}", "spec.clusterIP"},
		{"service", "spec: {ports: [{port: 80, targetPort: 22}]}", "spec.ports[0].targetPort"},
		{"service", "metadata: {labels: {gateway.networking.k8s.io/gateway-name: a}}", "metadata.labels"},
		{"serviceAccount", "automountServiceAccountToken: true", "automountServiceAccountToken"},
		{"serviceAccount", "secrets: [{name: a}]", "secrets"},
		{"serviceAccount", "metadata: {annotations: {eks.amazonaws.com/role-arn: a}}", "metadata.annotations"},
		{"horizontalPodAutoscaler", "spec: {scaleTargetRef: {kind: Deployment, name: other}}", "spec.scaleTargetRef"},
		{"horizontalPodAutoscaler", "spec: {minReplicas: 9}", "spec.minReplicas"},
		{"podDisruptionBudget", "spec: {selector: {}}", "spec.selector"},
		{"podDisruptionBudget", "spec: {minAvailable: 1, maxUnavailable: 1}", "spec.minAvailable"},
		{"clusterRole", "{}", "key clusterRole"},
	} {
		err := gatewaydeploy.Check("ConfigMap ns/o", map[string]string{c.key: c.text})
		if err == nil || !strings.Contains(err.Error(), "ConfigMap ns/o, key "+c.key) || !strings.Contains(err.Error(), c.field) {
			t.Errorf("%s: %s: %v", c.key, c.text, err)
		}
	}
}

func TestAllThatIsWrongIsSaidAtOnce(t *testing.T) {
	err := gatewaydeploy.Check("ConfigMap ns/o", map[string]string{
		"deployment": "spec: {template: {spec: {hostNetwork: true, volumes: []}}}", "service": "spec: {externalIPs: []}"})
	for _, want := range []string{"hostNetwork", "volumes", "externalIPs", "leave it out"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %s in %v", want, err)
		}
	}
}

// FuzzCheck: what passes has no field that changes a Pod's rights, however it is spelt.
func FuzzCheck(f *testing.F) {
	f.Add("deployment", "spec: {template: {spec: {containers: [{name: istio-proxy, resources: {}}]}}}")
	f.Add("service", "a: &a {b: c}\nspec: {<<: *a}")
	f.Fuzz(func(t *testing.T, key, text string) {
		data := map[string]string{key: text}
		if gatewaydeploy.Check("ConfigMap", data) != nil {
			return
		}
		overlay, _, err := gatewaydeploy.Overlay(data, key)
		if err != nil {
			t.Fatalf("%q passes and is not read: %v", text, err)
		}
		spec, _ := overlay["spec"].(map[string]any)
		template, _ := spec["template"].(map[string]any)
		pod, _ := template["spec"].(map[string]any)
		for _, name := range []string{"hostNetwork", "volumes", "serviceAccountName", "securityContext", "initContainers"} {
			if _, has := pod[name]; has {
				t.Errorf("%q passes with %s", text, name)
			}
		}
	})
}
