PARTS = ()
