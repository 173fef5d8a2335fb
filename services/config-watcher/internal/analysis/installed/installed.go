// Package installed tells what the Pods of the control plane say of the mesh.
package installed

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// MultiTenant reports whether Pods have a config-watcher with --multi-tenant. The caller knows that they are of the
// control plane's namespace.
func MultiTenant(spec *corev1.PodSpec) bool {
	return slices.ContainsFunc(spec.Containers, func(c corev1.Container) bool {
		return c.Name == "config-watcher" && slices.ContainsFunc(slices.Concat(c.Command, c.Args), func(arg string) bool {
			return arg == "--multi-tenant" || arg == "--multi-tenant=true"
		})
	})
}
