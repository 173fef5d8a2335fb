module fairlead.dev/tools/image

go 1.26.0
