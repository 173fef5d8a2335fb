// Package whole looks at a whole mesh at once, for `config-watcher analyze`, which `fairlead analyze` runs. It judges each
// object with package validate and the references between objects with package running, as a running mesh does. Its own
// checks need more than a mesh reads: Deployments, the containers and annotations of Pods, labels of namespaces,
// webhooks, the dates of certificates.
//
// Mesh.Load takes over an object, of files (ReadFiles) or of an API server (package apiserver). Mesh.Analyze returns the
// findings, without those that the user suppresses. Each check is a function of the mesh that calls run.report, and a row
// in checks; each code has a row in package finding.
package whole
