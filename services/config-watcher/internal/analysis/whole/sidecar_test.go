package whole

import (
	"slices"
	"strings"
	"testing"

	"fairlead.dev/services/config-watcher/internal/analysis/finding"
)

func TestSidecarsThatDoNotRunAreTold(t *testing.T) {
	pod := func(status string) string {
		return "{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, spec: {initContainers: [{name: istio-init}], containers: " +
			"[{name: web}, {name: istio-proxy}]}, status: {phase: Running, " + status + "}}"
	}
	const crashed = "{name: %, restartCount: 4, state: {waiting: {reason: CrashLoopBackOff, message: back-off 40s}}, lastState: " +
		"{terminated: {exitCode: 1, reason: Error}}}"
	const deployment = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: %}, spec: {template: {metadata: {labels: " +
		"{app: web}}, spec: {containers: [{name: web}]}}}, status: {conditions: [{type: ReplicaFailure, status: 'True', reason: FailedCreate, " +
		"message: 'pods \"web-1\" is forbidden: violates PodSecurity'}]}}"
	const namespace = "{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {istio-injection: enabled}}}"
	for name, tc := range map[string]struct {
		objects []string
		code    finding.Code
		want    string
	}{
		"a sidecar that crashes": {[]string{pod("containerStatuses: [" + strings.ReplaceAll(crashed, "%", "istio-proxy") + "]")},
			finding.SidecarNotRunning, "container istio-proxy does not run: CrashLoopBackOff: back-off 40s; it ended with exit code 1 (Error); " +
				"`kubectl " +
				"logs -n shop web -c istio-proxy --previous` says why"},
		"redirection that fails": {[]string{pod("initContainerStatuses: [" + strings.ReplaceAll(crashed, "%", "istio-init") + "]")},
			finding.SidecarNotRunning, "container istio-init does not run"},
		"an image that cannot be pulled": {
			[]string{pod("containerStatuses: [{name: istio-proxy, state: {waiting: {reason: ImagePullBackOff, message: not found}}}]")},
			finding.SidecarNotRunning, "ImagePullBackOff: not found; `kubectl describe pod -n shop web`"},
		"an application that crashes": {[]string{pod("containerStatuses: [" + strings.ReplaceAll(crashed, "%", "web") + "]")}, "", ""},
		"a sidecar that starts": {
			[]string{pod("containerStatuses: [{name: istio-proxy, state: {waiting: {reason: PodInitializing}}}]")}, "", ""},
		"a Deployment whose Pods are refused": {[]string{namespace, strings.ReplaceAll(deployment, "%", "shop")}, finding.PodsNotMade,
			"Pods are refused: pods \"web-1\" is forbidden: violates PodSecurity"},
		"an injector that is away": {
			[]string{namespace, strings.ReplaceAll(strings.ReplaceAll(deployment, "%", "shop"), "pods \"web-1\" is forbidden: violates PodSecurity",
				"Internal error occurred: failed calling webhook \"namespace.sidecar-injector.istio.io\": connection refused")}, finding.PodsNotMade,
			"sidecars are injected by Deployment injector"},
		"one of no mesh": {[]string{namespace, strings.ReplaceAll(deployment, "%", "other")}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := analyzed(t, Config{}, nil, tc.objects...)
			found := slices.DeleteFunc(r.Messages, func(m finding.Finding) bool {
				return m.Code != finding.SidecarNotRunning && m.Code != finding.PodsNotMade
			})
			switch {
			case tc.code == "" && len(found) > 0:
				t.Errorf("found %v", found)
			case tc.code == "":
			case len(found) != 1 || found[0].Code != tc.code || !strings.Contains(found[0].Error(), tc.want):
				t.Errorf("found %v, want one %s that says %q", found, tc.code, tc.want)
			}
		})
	}
}
