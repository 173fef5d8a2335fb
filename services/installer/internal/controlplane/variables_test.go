package controlplane

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestArgumentsHaveTheValuesThatKubernetesStartsAContainerWith(t *testing.T) {
	of := func(path string) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "ca-0", Namespace: "istio-system", UID: "u"},
		Spec:       corev1.PodSpec{NodeName: "node", ServiceAccountName: "ca"},
		Status:     corev1.PodStatus{PodIP: "192.0.2.1", HostIP: "192.0.2.2"},
	}
	c := &corev1.Container{
		Env: []corev1.EnvVar{
			{Name: "POD_NAME", ValueFrom: of("metadata.name")}, {Name: "NS", ValueFrom: of("metadata.namespace")},
			{Name: "UID", ValueFrom: of("metadata.uid")}, {Name: "NODE", ValueFrom: of("spec.nodeName")},
			{Name: "SA", ValueFrom: of("spec.serviceAccountName")}, {Name: "IP", ValueFrom: of("status.podIP")},
			{Name: "HOST", ValueFrom: of("status.hostIP")}, {Name: "LABEL", ValueFrom: of("metadata.labels['a']")},
			{Name: "SECRET", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{Key: "k"}}},
			{Name: "PLAIN", Value: "v"}, {Name: "BOTH", Value: "$(POD_NAME).$(NS) $(LATER)"}, {Name: "LATER", Value: "x"}, {Name: "EMPTY"},
		},
	}
	for arg, want := range map[string]string{
		"--replica=$(POD_NAME)":         "--replica=ca-0",
		"$(UID) $(NODE) $(SA)":          "u node ca",
		"$(IP)/$(HOST)$(PLAIN)":         "192.0.2.1/192.0.2.2v",
		"$(BOTH)":                       "ca-0.istio-system $(LATER)",
		"$(SECRET) $(LABEL) $(MISSING)": "$(SECRET) $(LABEL) $(MISSING)",
		"$$(POD_NAME) $$$(POD_NAME) $$": "$(POD_NAME) $ca-0 $",
		"$ $( $(POD_NAME $POD_NAME $":   "$ $( $(POD_NAME $POD_NAME $",
		"plain":                         "plain",
		"[$(EMPTY)]":                    "[]",
		"":                              "",
		"$(POD_NAME)$(POD_NAME":         "ca-0$(POD_NAME",
	} {
		c.Args = []string{arg, "end"}
		if got := resolved(pod, c); !slices.Equal(got, []string{want, "end"}) {
			t.Errorf("%q: %q, want %q", arg, got, want)
		}
	}
}
