package gateways

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/kubeapi"
)

// overlaid is a Gateway with overlays.
func overlaid(name string, data map[string]string) string {
	return configMap(apart, name, data) + gateway(apart, name, "", fmt.Sprintf("{gatewayClassName: istio, "+
		"infrastructure: {parametersRef: {group: '', kind: ConfigMap, name: %s}}, listeners: [{name: http, port: 80, protocol: HTTP}]}", name))
}

// refusedOverlays are overlays that ask for what nobody gets, by the name of a Gateway.
func refusedOverlays() map[string]map[string]string {
	pod := func(text string) map[string]string {
		return map[string]string{"deployment": "spec: {template: {spec: " + text + "}}"}
	}
	return map[string]map[string]string{
		"hostnetwork": pod(
			"{hostNetwork: true}",
		), "account": pod("{serviceAccountName: default}"), "volume": pod("{volumes: [{name: a, secret: {secretName: a}}]}"),
		"root": pod("{securityContext: {runAsUser: 0}}"), "init": pod("{initContainers: [{name: a, image: a}]}"),
		"second": pod("{containers: [{name: a, image: a}]}"), "image": pod("{containers: [{name: istio-proxy, image: a}]}"),
		"command": pod(
			"{containers: [{name: istio-proxy, command: [a]}]}",
		), "env": pod("{containers: [{name: istio-proxy, env: [{name: A, value: b}]}]}"),
		"privileged": pod("{containers: [{name: istio-proxy, securityContext: {privileged: true}}]}"), "replaced": pod("{$patch: replace}"),
		"node": pod("{nodeName: a}"), "token": pod("{automountServiceAccountToken: true}"),
		"selector": {"service": "spec: {selector: {app: other}}"}, "external": {"service": "spec: {type: ExternalName, externalName: a}"},
		"addresses": {
			"service": "spec: {externalIPs: [192.0.2.1]}",
		}, "target": {"horizontalPodAutoscaler": "spec: {scaleTargetRef: {name: other}}"},
		"secrets": {"serviceAccount": "secrets: [{name: a}]"}, "role": {"clusterRole": "rules: []"},
		"config": {"deployment": "spec: {template: {metadata: {annotations: {proxy.istio.io/config: a}}}}"},
	}
}

// TestWhoeverWritesGatewaysGetsNoPodWithOtherRights: of somebody who may write Gateways and ConfigMaps of a namespace,
// nothing is made that asks for more, and what runs stays.
func TestWhoeverWritesGatewaysGetsNoPodWithOtherRights(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	user := r.User(t, "attacker")
	r.Grant(t, kubeapi.UserSubject("attacker"), kubeapi.Rule("gateway.networking.k8s.io", []string{"gateways"}, "get", "create", "patch"),
		kubeapi.Rule("", []string{"configmaps"}, "get", "create", "patch"))
	apply := func(documents string) {
		t.Helper()
		objects, err := kubeapi.Decode([]byte(documents))
		testkit.NoError(t, err)
		testkit.Eventually(t, patience, func() error { return kubeapi.Apply(t.Context(), kubeapi.Load(t, user), objects...) })
	}
	tries := refusedOverlays()
	for name, data := range tries {
		apply(overlaid(name, data))
	}
	apply(
		gateway(apart, "absent", "", "{gatewayClassName: istio, infrastructure: {parametersRef: {group: '', kind: ConfigMap, name: none}}, "+
			"listeners: [{name: http, port: 80, protocol: HTTP}]}"),
	)
	apply(gateway(apart, "kind", "", "{gatewayClassName: istio, infrastructure: {parametersRef: {group: '', kind: Secret, name: none}}, "+
		"listeners: [{name: http, port: 80, protocol: HTTP}]}"))
	for name := range tries {
		r.event(apart, name, "InvalidParameters", "ConfigMap "+apart+"/"+name+", key ")
	}
	r.event(apart, "absent", "InvalidParameters", "there is no ConfigMap "+apart+"/none; create it")
	r.event(apart, "kind", "InvalidParameters", "kind Secret")
	list, err := r.Client(t).AppsV1().Deployments(apart).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) > 0 {
		t.Fatalf("%d Deployments were made (%v)", len(list.Items), err)
	}

	// What runs stays as it is.
	apply(overlaid("runs", map[string]string{"deployment": "spec: {replicas: 2}"}))
	r.has(apart, "runs-istio", standard...)
	before := r.get("Deployment", apart, "runs-istio")
	apply(overlaid("runs", map[string]string{"deployment": "spec: {replicas: 4, template: {spec: {hostPID: true}}}"}))
	r.event(apart, "runs", "InvalidParameters", "hostPID")
	if after := r.get("Deployment", apart, "runs-istio"); after.GetResourceVersion() != before.GetResourceVersion() {
		t.Errorf("the Deployment was changed: %v", after.Object["spec"])
	}
	apply(overlaid("runs", map[string]string{"deployment": "spec: {replicas: 4}"}))
	r.replicas("runs-istio", 4)
}

// TestAStolenTokenMakesNothingButGateways: with the token of fairlead-gateways' account, the API server makes no Pods
// but those of gateways, and changes nothing that no Gateway owns.
func TestAStolenTokenMakesNothingButGateways(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.start()
	r.Apply(t, gateway(apart, "web", "", ""))
	r.has(apart, "web-istio", standard...)
	testkit.NoError(t, d.Stop(patience))
	var good appsv1.Deployment
	r.into("Deployment", apart, "web-istio", &good)
	var service corev1.Service
	r.into("Service", apart, "web-istio", &service)
	r.Apply(t, "apiVersion: v1\nkind: Service\nmetadata: {namespace: team-a, name: others}\nspec: {ports: [{port: 1}]}\n")

	thief, err := kubernetes.NewForConfig(kubeapi.Load(t, r.ServiceAccount(t, system, "gateways")))
	testkit.NoError(t, err)
	create := func(change func(*appsv1.Deployment)) error {
		dep := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: apart, GenerateName: "stolen-", Labels: good.Labels,
			OwnerReferences: slices.Clone(good.OwnerReferences)}, Spec: *good.Spec.DeepCopy()}
		change(dep)
		_, err := thief.AppsV1().Deployments(dep.Namespace).Create(t.Context(), dep, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	spec := func(change func(*corev1.PodSpec)) func(*appsv1.Deployment) {
		return func(dep *appsv1.Deployment) { change(&dep.Spec.Template.Spec) }
	}
	container := func(change func(*corev1.Container)) func(*appsv1.Deployment) {
		return spec(func(p *corev1.PodSpec) { change(&p.Containers[0]) })
	}
	yes, no, zero := true, false, int64(0)
	testkit.NoError(t, create(func(*appsv1.Deployment) {}))
	for name, change := range map[string]func(*appsv1.Deployment){
		"no label":      func(dep *appsv1.Deployment) { dep.Labels = nil },
		"no owner":      func(dep *appsv1.Deployment) { dep.OwnerReferences = nil },
		"another owner": func(dep *appsv1.Deployment) { dep.OwnerReferences[0].Kind = "HTTPRoute" },
		"an image":      container(func(c *corev1.Container) { c.Image = "evil" }),
		"a command":     container(func(c *corev1.Container) { c.Command = []string{"sh"} }),
		"a hook":        container(func(c *corev1.Container) { c.Lifecycle = &corev1.Lifecycle{} }),
		"privileges": container(func(c *corev1.Container) {
			c.SecurityContext.Privileged, c.SecurityContext.AllowPrivilegeEscalation = &yes, nil
		}),
		"escalation":   container(func(c *corev1.Container) { c.SecurityContext.AllowPrivilegeEscalation = &yes }),
		"root":         container(func(c *corev1.Container) { c.SecurityContext.RunAsUser = &zero }),
		"maybe root":   container(func(c *corev1.Container) { c.SecurityContext.RunAsNonRoot = &no }),
		"capabilities": container(func(c *corev1.Container) { c.SecurityContext.Capabilities.Add = []corev1.Capability{"NET_ADMIN"} }),
		"a host port":  container(func(c *corev1.Container) { c.Ports[0].HostPort = c.Ports[0].ContainerPort }),
		"a Secret's variable": container(func(c *corev1.Container) {
			c.Env = append(c.Env, corev1.EnvVar{Name: "A", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
				LocalObjectReference: corev1.LocalObjectReference{Name: "a"}, Key: "b"}}})
		}),
		"a Secret's variables": container(func(c *corev1.Container) {
			c.EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "a"}}}}
		}),
		"two containers": spec(func(p *corev1.PodSpec) {
			p.Containers = append(p.Containers, corev1.Container{Name: "a", Image: p.Containers[0].Image})
		}),
		"init containers": spec(func(p *corev1.PodSpec) {
			p.InitContainers = []corev1.Container{{Name: "a", Image: p.Containers[0].Image}}
		}),
		"the node's network": spec(func(p *corev1.PodSpec) { p.HostNetwork, p.SecurityContext.Sysctls = true, nil }),
		"a token":            spec(func(p *corev1.PodSpec) { p.AutomountServiceAccountToken = &yes }),
		"a Secret": spec(func(p *corev1.PodSpec) {
			p.Volumes = append(p.Volumes, corev1.Volume{Name: "a", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "a"}}})
		}),
		"the node's files": spec(func(p *corev1.PodSpec) {
			p.Volumes = append(p.Volumes, corev1.Volume{Name: "a",
				VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}})
		}),
		"another ConfigMap": spec(func(p *corev1.PodSpec) {
			p.Volumes = append(p.Volumes, corev1.Volume{Name: "a", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "a"}}}})
		}),
		"a token for Kubernetes": spec(func(p *corev1.PodSpec) {
			p.Volumes = append(p.Volumes, corev1.Volume{Name: "a", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
				Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "a"}}}}}})
		}),
		"no user": spec(func(p *corev1.PodSpec) { p.SecurityContext = nil }),
		"a probe that runs a program": container(func(c *corev1.Container) {
			c.LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"sh"}}}}
		}),
		"a probe of another host": container(func(c *corev1.Container) { c.ReadinessProbe.HTTPGet.Host = "169.254.169.254" }),
		"no seccomp":              spec(func(p *corev1.PodSpec) { p.SecurityContext.SeccompProfile.Type = corev1.SeccompProfileTypeUnconfined }),
		"no seccomp of the container": container(func(c *corev1.Container) {
			c.SecurityContext.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}
		}),
		"no AppArmor": spec(func(p *corev1.PodSpec) {
			p.SecurityContext.AppArmorProfile = &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
		}),
		"a type of SELinux": spec(func(p *corev1.PodSpec) { p.SecurityContext.SELinuxOptions = &corev1.SELinuxOptions{Type: "spc_t"} }),
		"further groups":    spec(func(p *corev1.PodSpec) { p.SecurityContext.SupplementalGroups = []int64{0} }),
		"no capability is dropped": container(func(c *corev1.Container) {
			c.SecurityContext.Capabilities = &corev1.Capabilities{Drop: []corev1.Capability{"CHOWN"}}
		}),
		"a device": container(func(c *corev1.Container) {
			c.Resources.Limits["example.com/kvm"], c.Resources.Requests["example.com/kvm"] = resource.MustParse("1"), resource.MustParse("1")
		}),
		"a claim of a device": spec(func(p *corev1.PodSpec) {
			name := "a"
			p.ResourceClaims = []corev1.PodResourceClaim{{Name: "a", ResourceClaimName: &name}}
		}),
		"a sidecar of any image": func(dep *appsv1.Deployment) {
			dep.Spec.Template.Labels["sidecar.istio.io/inject"] = "true"
			dep.Spec.Template.Annotations["sidecar.istio.io/proxyImage"] = "evil"
		},
		"what a mesh does by default": func(dep *appsv1.Deployment) { delete(dep.Spec.Template.Labels, "sidecar.istio.io/inject") },
		"a network of the node": func(dep *appsv1.Deployment) {
			dep.Spec.Template.Annotations["k8s.v1.cni.cncf.io/networks"] = "host"
		},
		"a hook of the runtime": func(dep *appsv1.Deployment) { dep.Spec.Template.Annotations["run.oci.handler"] = "a" },
		"rights in a cloud":     func(dep *appsv1.Deployment) { dep.Spec.Template.Annotations["iam.amazonaws.com/role"] = "admin" },
		"a cloud's identity":    func(dep *appsv1.Deployment) { dep.Spec.Template.Labels["azure.workload.identity/use"] = "true" },
	} {
		if err := create(change); !denied(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	of := func(account string) func(*appsv1.Deployment) {
		return func(dep *appsv1.Deployment) {
			dep.Namespace, dep.Spec.Template.Spec.ServiceAccountName, dep.Spec.Template.Spec.DeprecatedServiceAccount = system, account, ""
		}
	}
	testkit.NoError(t, create(of("web-istio")))
	for _, account := range []string{"ca", "config-watcher", "xds-server", "injector", "fairlead-admin"} {
		if err := create(of(account)); !denied(err) {
			t.Errorf("Pods with the mesh's account %s: %v", account, err)
		}
	}
	dry, meta := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}, metav1.ObjectMeta{Namespace: apart, Name: "stolen",
		Labels: good.Labels, OwnerReferences: good.OwnerReferences}
	scales := func(kind, name string) error {
		spec := autoscalingv1.HorizontalPodAutoscalerSpec{MaxReplicas: 1,
			ScaleTargetRef: autoscalingv1.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: kind, Name: name}}
		_, err := thief.AutoscalingV1().HorizontalPodAutoscalers(apart).Create(t.Context(),
			&autoscalingv1.HorizontalPodAutoscaler{ObjectMeta: meta, Spec: spec}, dry)
		return err
	}
	keeps := func(labels map[string]string) error {
		_, err := thief.PolicyV1().PodDisruptionBudgets(apart).Create(t.Context(), &policyv1.PodDisruptionBudget{ObjectMeta: meta,
			Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}}}, dry)
		return err
	}
	account := func(annotations map[string]string) error {
		is := meta
		is.Annotations = annotations
		_, err := thief.CoreV1().ServiceAccounts(apart).Create(t.Context(),
			&corev1.ServiceAccount{ObjectMeta: is, AutomountServiceAccountToken: &no}, dry)
		return err
	}
	testkit.NoError(t, scales("Deployment", "stolen"))
	testkit.NoError(t, keeps(map[string]string{"gateway.networking.k8s.io/gateway-name": "web"}))
	testkit.NoError(t, account(nil))
	for name, err := range map[string]error{
		"scales another Deployment":  scales("Deployment", "pay"),
		"scales a StatefulSet":       scales("StatefulSet", "stolen"),
		"keeps other Pods":           keeps(map[string]string{"app": "a"}),
		"keeps all Pods":             keeps(nil),
		"makes an account of AWS":    account(map[string]string{"eks.amazonaws.com/role-arn": "admin"}),
		"makes an account of Google": account(map[string]string{"iam.gke.io/gcp-service-account": "admin"}),
		"changes a Deployment of the mesh": func() error {
			_, err := thief.AppsV1().Deployments(system).Patch(t.Context(), "ca", types.MergePatchType,
				[]byte(`{"spec":{"replicas":0}}`), metav1.PatchOptions{})
			return err
		}(),
		"takes a Deployment of the mesh": func() error {
			_, err := thief.AppsV1().Deployments(system).Patch(t.Context(), "ca", types.MergePatchType, []byte(`{"metadata":{"labels":
				{"gateway.istio.io/managed":"a"},"ownerReferences":[{"apiVersion":"gateway.networking.k8s.io/v1","kind":"Gateway","name":"a","uid":"a"}]}}`),
				metav1.PatchOptions{})
			return err
		}(),
		"deletes a Service":         thief.CoreV1().Services(apart).Delete(t.Context(), "others", metav1.DeleteOptions{}),
		"deletes a service account": thief.CoreV1().ServiceAccounts(system).Delete(t.Context(), "ca", metav1.DeleteOptions{}),
		"selects other Pods": func() error {
			_, err := thief.CoreV1().Services(apart).Patch(t.Context(), "web-istio", types.MergePatchType,
				[]byte(`{"spec":{"selector":{"app":"a"}}}`),
				metav1.PatchOptions{})
			return err
		}(),
		"takes addresses": func() error {
			_, err := thief.CoreV1().Services(apart).Patch(t.Context(), "web-istio", types.MergePatchType, []byte(`{"spec":{"externalIPs":["192.0.2.1"]}}`),
				metav1.PatchOptions{})
			return err
		}(),
		"reads a Secret": func() error {
			_, err := thief.CoreV1().Secrets(system).List(t.Context(), metav1.ListOptions{})
			return err
		}(),
		"becomes administrator": func() error {
			_, err := thief.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "a"},
				RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"}}, metav1.CreateOptions{})
			return err
		}(),
		"makes a Pod": func() error {
			_, err := thief.CoreV1().Pods(apart).Create(t.Context(), &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: good.Spec.Template.Spec},
				metav1.CreateOptions{})
			return err
		}(),
	} {
		if !denied(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// denied reports whether the API server has refused for want of rights, or by the policy.
func denied(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy")
}
