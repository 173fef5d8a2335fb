// Package ndsv1 is Istio's contract of the name table for agents' DNS.
package ndsv1

// NameTableType is the type URL that agents ask for the table with.
const NameTableType = "type.googleapis.com/istio.networking.nds.v1.NameTable"
