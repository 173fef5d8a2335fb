package manifests_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/installer/internal/install/profile"
)

// values is a file with values of the ca, in YAML.
func values(ca string) string {
	return "apiVersion: install.istio.io/v1alpha1\nkind: IstioOperator\nspec: {values: {ca: " + ca + "}}\n"
}

// rendered are the objects of profile minimal with values of the ca.
func rendered(t *testing.T, pkg *profile.Package, ca string) []runtime.Object {
	t.Helper()
	result, err := try(pkg, "minimal", values(ca))
	if err != nil {
		t.Fatal(err)
	}
	if len(result.Warnings) > 0 {
		t.Errorf("warnings %q", result.Warnings)
	}
	objects, err := decode(text(t, withoutCRDs(result.Objects)))
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// signers are values of each kind, by the name of a golden file that has what the installation has more than without
// them.
var signers = map[string]string{
	"cacerts": "{signer: {caCerts: {directory: /etc/cacerts}}}",
	"vault": "{signer: {name: pki, intermediate: {keys: {secret: {namespace: keys, name: mesh}}, " +
		"vault: {address: 'https://vault.vault.svc:8200', caFile: /etc/vault/ca.pem, auth: {kubernetes: {role: fairlead-ca, " +
		"tokenFile: /var/run/secrets/vault/token}}}}}, " +
		"signerVolumes: [{name: vault, mountPath: /etc/vault, secret: vault-ca}, " +
		"{name: token, mountPath: /var/run/secrets/vault, audience: vault}]}",
	"vault-leaves": "{signer: {vault: {address: 'https://10.1.2.3', role: mesh, auth: {token: {file: /etc/vault/token}}}}}",
	"kms": "{signer: {intermediate: {keys: {kms: {type: awskms, uri: 'awskms:region=eu-west-1'}}, selfSigned: {}}}, " +
		"signerEgress: [{ports: [{protocol: TCP, port: 8443}]}]}",
	"kubernetes-csr": "{signer: {kubernetesCSR: {domain: signers.example.com, signer: mesh, approve: true, " +
		"roots: {configMap: {namespace: pki, name: roots}}, profiles: [{name: fast, namespaces: [shop]}]}}}",
	"cert-manager": "{signer: {certManager: {namespace: istio-system, issuerRef: {name: mesh, kind: ClusterIssuer}, approve: true, " +
		"roots: {secret: {namespace: cert-manager, name: mesh-root}}, " +
		"profiles: [{name: fast, namespaces: ['*'], issuerRef: {name: own}}]}}}",
	"step-ca": "{signer: {stepCA: {url: 'https://step-ca.pki.svc.cluster.local:9000', fingerprints: [ab], provisioner: fairlead, " +
		"jwk: {keyFile: /etc/step/key}}}}",
	"istio":   "{signer: {istio: {address: 'istiod.other.svc:15012', rootsFile: /etc/roots/root-cert.pem}}}",
	"service": "{signer: {service: {address: '[fd00::1]:15443', serverName: signer}}}",
	"socket":  "{signer: {service: {address: 'unix:///run/signer/signer.sock'}}}",
	"text": "{signer: \"# Written by hand.\\napiVersion: ca.fairlead.dev/v1\\nkind: Signer\\nname: hand\\n" +
		"caCerts: {directory: /etc/cacerts}\\n\"}",
	"own-keys": "{keysSecret: ca-keys}",
	"swap":     "{signer: {caCerts: {directory: /etc/cacerts}}, furtherSigners: [{vault: {address: 'https://vault.example.com:8200'}}]}",
	"replicas": "{replicaCount: 2, keysSecret: ca-keys, storageClassName: fast}",
}

// more are the lines of after that before has not, with their number of occurrences.
func more(before, after string) string {
	left := map[string]int{}
	for _, line := range strings.Split(before, "\n") {
		left[line]++
	}
	var out []string
	for _, line := range strings.Split(after, "\n") {
		if left[line]--; left[line] < 0 {
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n") + "\n"
}

// TestSignersOfTheCA holds what the installation has for each kind of signer, which Kubernetes must know: rights, ways
// out, flags and volumes, beside what it has without one.
func TestSignersOfTheCA(t *testing.T) {
	pkg := open(t)
	without := rendered(t, pkg, "{}")
	for name, ca := range signers {
		t.Run(name, func(t *testing.T) {
			objects := rendered(t, pkg, ca)
			b := strings.Builder{}
			b.WriteString("rights:\n" + more(strings.Join(rights(t, without), "\n"), strings.Join(rights(t, objects), "\n")))
			b.WriteString("ways out:\n" + more(egress(t, without), egress(t, objects)))
			b.WriteString("ca:\n" + more(podOf(t, without), podOf(t, objects)))
			for _, o := range objects {
				if c, ok := o.(*corev1.ConfigMap); ok && c.Name == "ca-signer" {
					b.WriteString("signer.yaml:\n" + c.Data["signer.yaml"])
				}
			}
			testkit.Golden(t, filepath.Join("testdata", "signers", name+".txt"), []byte(b.String()))
		})
	}
}

// inYAML is an object's text.
func inYAML(t *testing.T, o any) string {
	t.Helper()
	out, err := yaml.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func egress(t *testing.T, objects []runtime.Object) string {
	t.Helper()
	var b strings.Builder
	for _, o := range objects {
		if p, ok := o.(*networkingv1.NetworkPolicy); ok && p.Name == "ca" {
			b.WriteString(inYAML(t, p.Spec.Egress))
		}
	}
	return b.String()
}

// podOf is the ca's Pod, and what else its workload has.
func podOf(t *testing.T, objects []runtime.Object) string {
	t.Helper()
	for _, o := range objects {
		switch o := o.(type) {
		case *appsv1.Deployment:
			if o.Name == "ca" {
				return inYAML(t, o)
			}
		case *appsv1.StatefulSet:
			return inYAML(t, o)
		}
	}
	t.Fatal("no workload of the ca")
	return ""
}

// TestAChangedSignerStartsNoPod holds that the Pod is the same for two signers that need the same files: the ca follows
// the ConfigMap, and an annotation with its checksum would end a swap where it began.
func TestAChangedSignerStartsNoPod(t *testing.T) {
	pkg := open(t)
	one, other := rendered(t, pkg, signers["vault-leaves"]), rendered(t, pkg, signers["step-ca"])
	if before, after := podOf(t, one), podOf(t, other); before != after {
		t.Errorf("the Pod differs:\n%s", more(before, after))
	}
	for _, m := range container(t, one).VolumeMounts {
		if m.Name == "signer" && (m.SubPath != "" || !m.ReadOnly) {
			t.Errorf("the signer's file is mounted by %+v", m)
		}
	}
}

func container(t *testing.T, objects []runtime.Object) corev1.Container {
	t.Helper()
	for _, o := range objects {
		if d, ok := o.(*appsv1.Deployment); ok && d.Name == "ca" {
			return d.Spec.Template.Spec.Containers[0]
		}
	}
	t.Fatal("no Deployment of the ca")
	return corev1.Container{}
}

// TestOneVolumeHasOneCA holds which signers several replicas cannot share, and what the chart says.
func TestOneVolumeHasOneCA(t *testing.T) {
	pkg := open(t)
	const token = "{replicaCount: 2, signer: {intermediate: {keys: {kms: {type: pkcs11, uri: 'pkcs11:token=t', module: /m%s}}}}}"
	for ca, want := range map[string]string{
		"{replicaCount: 2}": "set values.ca.keysSecret or values.ca.signer",
		"{replicaCount: 3, signer: {intermediate: {keys: {directory: {dir: /d}}, selfSigned: {}}}}": "have it use keys.secret or keys.kms",
		fmt.Sprintf(token, ""):                                                          "set its field shared",
		fmt.Sprintf(token, ", shared: true"):                                            "",
		"{replicaCount: 2, signer: {istio: {address: 'a:1'}}}":                          "signer istio signs no DNS names",
		"{replicaCount: 2, keysSecret: k, furtherSigners: [{istio: {address: 'a:1'}}]}": "signer istio signs",
		"{replicaCount: 2, signer: \"a: [\"}":                                           "the text is no YAML",
		"{replicaCount: 2, signer: {caCerts: {directory: /d}}}":                         "",
		"{keysSecret: k, signerVolumes: [{name: x, mountPath: /x}]}":                    "x has no secret, configMap or audience",
	} {
		_, err := try(pkg, "minimal", values(ca))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s\nerror %v\nwant  %q", ca, err, want)
		}
	}
	compact := nested(t, "values.compact.ca", map[string]any{"replicaCount": 2, "keysSecret": "k"})
	if _, err := try(pkg, "compact", compact); err == nil || !strings.Contains(err.Error(), "all services are in one Pod") {
		t.Errorf("compact: %v", err)
	}
}

// TestSettingsReachReplicas holds that Kubernetes settings of components.ca change its StatefulSet, too.
func TestSettingsReachReplicas(t *testing.T) {
	pkg := open(t)
	result, err := try(pkg, "minimal", "apiVersion: install.istio.io/v1alpha1\nkind: IstioOperator\nspec: {values: {ca: {keysSecret: k}}, "+
		"components: {ca: {k8s: {replicaCount: 4, podAnnotations: {a: b}, resources: {requests: {cpu: 777m}}, strategy: {type: Recreate}}}}}\n")
	if err != nil {
		t.Fatal(err)
	}
	if len(result.Warnings) != 1 || !strings.Contains(result.Warnings[0], "k8s.strategy has no effect: a StatefulSet has no such field") {
		t.Errorf("warnings %q", result.Warnings)
	}
	objects, err := decode(text(t, withoutCRDs(result.Objects)))
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(objects, func(o runtime.Object) bool { _, ok := o.(*appsv1.StatefulSet); return ok })
	if i < 0 {
		t.Fatal("no StatefulSet")
	}
	s, _ := objects[i].(*appsv1.StatefulSet)
	c := s.Spec.Template.Spec.Containers[0]
	if *s.Spec.Replicas != 4 || s.Spec.Template.Annotations["a"] != "b" || c.Resources.Requests.Cpu().MilliValue() != 777 {
		t.Errorf("StatefulSet: %+v", s.Spec)
	}
}
