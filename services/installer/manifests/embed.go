// Package manifests is the install package of Fairlead: charts, profiles, and components.yaml, which says what an
// IstioOperator's fields mean here. The fairlead command installs it; `helm install` takes each chart as it is.
package manifests

import "embed"

// FS holds the package.
//
//go:embed all:charts all:profiles components.yaml values.schema.json
var FS embed.FS
